import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
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
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * The Java client behind a pipe: commands as JSON lines on stdin, results and received messages on stdout
 * (tests/oracles/piped_client.py). The library is used as it is published.
 */
public class JavaClient {
    private final String registry;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    /** What a check says, by body; UNKNOW without an entry. */
    private final Map<String, LocalTransactionState> checks = new ConcurrentHashMap<>();

    private JavaClient(String registry) {
        this.registry = registry;
    }

    public static void main(String[] arguments) throws Exception {
        Pipe.serve(new JavaClient(arguments[0])::run);
    }

    private Object run(JSONObject words) throws Exception {
        switch (words.getString("do")) {
            case "transaction_producer":
                return transactionProducer(words);
            case "send_in_transaction":
                return sendInTransaction(words);
            case "producer":
                return producer(words);
            case "send":
                return send(words);
            case "request":
                return request(words);
            case "push":
                return push(words);
            case "commit":
                // What it does every five seconds.
                consumers.get(words.getString("name")).getDefaultMQPushConsumerImpl().persistConsumerOffset();
                return null;
            case "shutdown":
                consumers.remove(words.getString("name")).shutdown();
                return null;
            default:
                throw new IllegalArgumentException(words.getString("do"));
        }
    }

    /** May have "heartbeat_ms", the time between two heartbeats. */
    private Object transactionProducer(JSONObject words) throws Exception {
        String group = words.getString("group");
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(registry);
        producer.setInstanceName(group);
        if (words.containsKey("heartbeat_ms")) {
            producer.setHeartbeatBrokerInterval(words.getIntValue("heartbeat_ms"));
        }
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.valueOf((String) argument);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                JSONObject line = seen(message);
                line.put("times", message.getUserProperty("TRANSACTION_CHECK_TIMES"));
                line.put("transaction_id", message.getTransactionId());
                Pipe.say("check", line);
                return checks.getOrDefault(body(message), LocalTransactionState.UNKNOW);
            }
        });
        producer.start();
        producers.put(group, producer);
        return null;
    }

    private Object sendInTransaction(JSONObject words) throws Exception {
        String text = words.getString("body");
        if (words.containsKey("check")) {
            checks.put(text, LocalTransactionState.valueOf(words.getString("check")));
        }
        TransactionMQProducer producer = (TransactionMQProducer) producers.get(words.getString("group"));
        TransactionSendResult result =
            producer.sendMessageInTransaction(message(words), words.getString("execute"));
        JSONObject values = sent(result);
        values.put("state", result.getLocalTransactionState().name());
        values.put("transaction_id", result.getTransactionId());
        return values;
    }

    /** "account" are an access key and its secret. */
    private static RPCHook signing(JSONObject words) {
        JSONArray account = words.getJSONArray("account");
        return account == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(account.getString(0), account.getString(1)));
    }

    /** May have an "account" and "tls". */
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

    /** Each of "messages" has a "body" and may have "tags", "keys", a "delay_level" and "properties". */
    private Object send(JSONObject words) throws Exception {
        List<String> results = new ArrayList<>();
        JSONArray messages = words.getJSONArray("messages");
        for (int at = 0; at < messages.size(); at++) {
            JSONObject each = messages.getJSONObject(at);
            each.put("topic", words.getString("topic"));
            Message message = message(each);
            message.setDelayTimeLevel(each.getIntValue("delay_level"));
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

    private Object request(JSONObject words) throws Exception {
        DefaultMQProducer producer = producers.get(words.getString("group"));
        Message reply = producer.request(message(words), words.getLongValue("timeout_ms"));
        JSONObject values = new JSONObject();
        values.put("topic", reply.getTopic());
        values.put("body", new String(reply.getBody(), StandardCharsets.UTF_8));
        return values;
    }

    /**
     * Messages follow as lines of kind "message"; with "replies_by" each is replied to by that producer. May have
     * "sql" or an "expression" of tags, an "account", "tls", "orderly", "pull_again_ms" for the time after a pull
     * that has failed, and an "instance": its name for "commit" and "shutdown".
     */
    private Object push(JSONObject words) throws Exception {
        String group = words.getString("group");
        String instance = words.containsKey("instance") ? words.getString("instance") : group;
        DefaultMQProducer replier =
            words.containsKey("replies_by") ? producers.get(words.getString("replies_by")) : null;
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, signing(words), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(registry);
        consumer.setInstanceName(instance);
        consumer.setUseTLS(words.getBooleanValue("tls"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullTimeDelayMillsWhenException(
            words.containsKey("pull_again_ms") ? words.getLongValue("pull_again_ms") : 100);
        if (words.containsKey("sql")) {
            consumer.subscribe(words.getString("topic"), MessageSelector.bySql(words.getString("sql")));
        } else {
            consumer.subscribe(words.getString("topic"), words.getOrDefault("expression", "*").toString());
        }
        if (words.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    Pipe.say("message", received(group, instance, message));
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            consumers.put(instance, consumer);
            return null;
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Pipe.say("message", received(group, instance, message));
                if (replier == null) {
                    continue;
                }
                try {
                    byte[] text = ("re: " + body(message)).getBytes(StandardCharsets.UTF_8);
                    Pipe.say("replied", sent(replier.send(MessageUtil.createReplyMessage(message, text))));
                } catch (Exception error) {
                    JSONObject failed = new JSONObject();
                    failed.put("error", error.toString());
                    Pipe.say("replied", failed);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumers.put(instance, consumer);
        return null;
    }

    private static Message message(JSONObject words) {
        byte[] text = words.getString("body").getBytes(StandardCharsets.UTF_8);
        return new Message(words.getString("topic"), words.getString("tags"), words.getString("keys"), text);
    }

    private static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static JSONObject seen(MessageExt message) {
        JSONObject line = new JSONObject();
        line.put("topic", message.getTopic());
        line.put("body", body(message));
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("id", message.getMsgId());
        line.put("queue_id", message.getQueueId());
        line.put("colour", message.getUserProperty("colour"));
        return line;
    }

    private static JSONObject received(String group, String instance, MessageExt message) {
        JSONObject line = seen(message);
        line.put("group", group);
        line.put("consumer", instance);
        line.put("prepared_position", message.getPreparedTransactionOffset());
        line.put("sys_flag", message.getSysFlag());
        line.put("transaction_id", message.getTransactionId());
        line.put("born_port", ((InetSocketAddress) message.getBornHost()).getPort());
        return line;
    }

    private static JSONObject sent(SendResult result) {
        JSONObject values = new JSONObject();
        values.put("status", result.getSendStatus().name());
        values.put("id", result.getMsgId());
        values.put("offset_id", result.getOffsetMsgId());
        values.put("offset", result.getQueueOffset());
        return values;
    }
}
