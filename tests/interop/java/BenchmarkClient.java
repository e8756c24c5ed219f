import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.CommandUtil;

/**
 * The Java client behind a pipe (tests/oracles/piped_client.py), called as the RocketMQ driver of the OpenMessaging
 * Benchmark calls it: an admin client that makes the topics, one producer for all of them, and a consumer with an
 * instance of its own for each member of a subscription. A message begins with a producer's number and its own.
 */
public class BenchmarkClient {
    private final String registry;
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    private final Map<String, ConcurrentLinkedQueue<long[]>> received = new ConcurrentHashMap<>();
    private RPCHook signing;
    private DefaultMQAdminExt admin;
    private DefaultMQProducer producer;

    private BenchmarkClient(String registry) {
        this.registry = registry;
    }

    public static void main(String[] arguments) throws Exception {
        Pipe.serve(new BenchmarkClient(arguments[0])::run);
    }

    private Object run(JSONObject words) throws Exception {
        switch (words.getString("do")) {
            case "start":
                return start(words);
            case "create_topic":
                return createTopic(words);
            case "consumer":
                return consumer(words);
            case "send":
                return send(words);
            case "received":
                return received(words);
            case "close":
                consumers.remove(words.getString("name")).shutdown();
                return null;
            case "end":
                producer.shutdown();
                admin.shutdown();
                return null;
            default:
                throw new IllegalArgumentException(words.getString("do"));
        }
    }

    /** May have an "account", an access key and its secret. */
    private Object start(JSONObject words) throws Exception {
        JSONArray account = words.getJSONArray("account");
        signing = account == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(account.getString(0), account.getString(1)));
        admin = new DefaultMQAdminExt(signing);
        admin.setNamesrvAddr(registry);
        admin.setInstanceName("admin");
        admin.start();
        producer = new DefaultMQProducer("ProducerGroup_x-_Z", signing);
        producer.setNamesrvAddr(registry);
        producer.setInstanceName("producer");
        producer.setVipChannelEnabled(false);
        producer.start();
        return null;
    }

    /** The brokers it was made at. */
    private Object createTopic(JSONObject words) throws Exception {
        Set<String> brokers = CommandUtil.fetchMasterAddrByClusterName(admin, words.getString("cluster"));
        TopicConfig config = new TopicConfig();
        config.setOrder(false);
        config.setPerm(6);
        config.setReadQueueNums(Math.max(1, words.getIntValue("partitions") / brokers.size()));
        config.setWriteQueueNums(config.getReadQueueNums());
        config.setTopicName(words.getString("topic"));
        for (String broker : brokers) {
            admin.createAndUpdateTopicConfig(broker, config);
        }
        return brokers;
    }

    private Object consumer(JSONObject words) throws Exception {
        String name = words.getString("name");
        ConcurrentLinkedQueue<long[]> messages =
            received.computeIfAbsent(name, key -> new ConcurrentLinkedQueue<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            words.getString("subscription"), signing, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(registry);
        consumer.setInstanceName(name);
        consumer.setVipChannelEnabled(false);
        consumer.subscribe(words.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                ByteBuffer payload = ByteBuffer.wrap(message.getBody());
                long age = System.currentTimeMillis() - message.getBornTimestamp();
                messages.add(new long[] {payload.getInt(), payload.getInt(), age, message.getBody().length});
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumers.put(name, consumer);
        return null;
    }

    /** "count" messages of each of as many senders as there are "keys", which may be null; what failed. */
    private Object send(JSONObject words) throws Exception {
        JSONArray keys = words.getJSONArray("keys");
        int first = words.getIntValue("first");
        int count = words.getIntValue("count");
        CountDownLatch under_way = new CountDownLatch(count * keys.size());
        ConcurrentLinkedQueue<String> failed = new ConcurrentLinkedQueue<>();
        for (int number = first; number < first + count; number++) {
            for (int from = 0; from < keys.size(); from++) {
                ByteBuffer payload = ByteBuffer.allocate(words.getIntValue("bytes"));
                payload.putInt(from).putInt(number);
                Message message = new Message(words.getString("topic"), payload.array());
                if (keys.getString(from) != null) {
                    message.setKeys(keys.getString(from));
                }
                producer.send(message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        under_way.countDown();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failed.add(error.toString());
                        under_way.countDown();
                    }
                });
            }
        }
        if (!under_way.await(30, TimeUnit.SECONDS)) {
            failed.add(under_way.getCount() + " without an answer");
        }
        return failed;
    }

    /** What a consumer has got since it was asked last. */
    private Object received(JSONObject words) {
        ConcurrentLinkedQueue<long[]> messages = received.get(words.getString("name"));
        JSONArray found = new JSONArray();
        for (long[] each = messages.poll(); each != null; each = messages.poll()) {
            found.add(each);
        }
        return found;
    }
}
