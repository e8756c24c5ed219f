import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * The Java client with accounts, TLS and filters by SQL92, behind a pipe: commands as JSON lines on stdin,
 * results and received messages on stdout (tests/oracles/piped_client.py). The library is used as published.
 */
public class SecureClient {
    private final String registry;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();

    private SecureClient(String registry) {
        this.registry = registry;
    }

    public static void main(String[] arguments) throws Exception {
        SecureClient client = new SecureClient(arguments[0]);
        say("ready", new JSONObject());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject answer = new JSONObject();
            try {
                answer.put("value", client.run(JSON.parseObject(line)));
                say("done", answer);
            } catch (Exception error) {
                answer.put("error", error + (error.getCause() == null ? "" : "; " + error.getCause()));
                say("failed", answer);
            }
        }
        // Without the library's own ways to end, which wait for its threads.
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String kind, JSONObject values) {
        values.put("kind", kind);
        System.out.println("\n@@" + values.toJSONString());
        System.out.flush();
    }

    private Object run(JSONObject words) throws Exception {
        switch (words.getString("do")) {
            case "producer":
                return producer(words);
            case "send":
                return send(words);
            case "push":
                return push(words);
            default:
                throw new IllegalArgumentException(words.getString("do"));
        }
    }

    /** "keys" are an access key and its secret. */
    private static RPCHook signing(JSONObject words) {
        JSONArray keys = words.getJSONArray("keys");
        return keys == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(keys.getString(0), keys.getString(1)));
    }

    private Object producer(JSONObject words) throws Exception {
        String group = words.getString("group");
        DefaultMQProducer producer = new DefaultMQProducer(group, signing(words));
        producer.setNamesrvAddr(registry);
        producer.setInstanceName(group);
        producer.setUseTLS(words.getBooleanValue("tls"));
        producer.start();
        producers.put(group, producer);
        return null;
    }

    /** Each of "messages" has a "body" and may have "properties". */
    private Object send(JSONObject words) throws Exception {
        List<String> results = new ArrayList<>();
        JSONArray messages = words.getJSONArray("messages");
        for (int at = 0; at < messages.size(); at++) {
            JSONObject each = messages.getJSONObject(at);
            byte[] text = each.getString("body").getBytes(StandardCharsets.UTF_8);
            Message message = new Message(words.getString("topic"), text);
            JSONObject properties = each.getJSONObject("properties");
            if (properties != null) {
                for (String name : properties.keySet()) {
                    message.putUserProperty(name, properties.getString(name));
                }
            }
            results.add(producers.get(words.getString("group")).send(message).getSendStatus().name());
        }
        return results;
    }

    /** Messages follow as lines of kind "message". */
    private Object push(JSONObject words) throws Exception {
        String group = words.getString("group");
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, signing(words), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(registry);
        consumer.setInstanceName(group);
        consumer.setUseTLS(words.getBooleanValue("tls"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullTimeDelayMillsWhenException(100);
        if (words.containsKey("sql")) {
            consumer.subscribe(words.getString("topic"), MessageSelector.bySql(words.getString("sql")));
        } else {
            consumer.subscribe(words.getString("topic"), "*");
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                JSONObject line = new JSONObject();
                line.put("group", group);
                line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
                say("message", line);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumers.add(consumer);
        return null;
    }
}
