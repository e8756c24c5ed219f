import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The push consumer of RocketMQ 5 behind a pipe, in the mode that the broker tells it (tests/oracles/piped_client.py),
 * and its producer, which compresses.
 * The library is used as it is published.
 */
public class PopClient {
    private final String registry;
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();

    private PopClient(String registry) {
        this.registry = registry;
    }

    public static void main(String[] arguments) throws Exception {
        Pipe.serve(new PopClient(arguments[0])::run);
    }

    private Object run(JSONObject words) throws Exception {
        switch (words.getString("do")) {
            case "set_mode":
                return setMode(words);
            case "consume":
                return consume(words);
            case "send":
                return send(words);
            default:
                throw new IllegalArgumentException(words.getString("do"));
        }
    }

    private Object send(JSONObject words) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-compressing");
        producer.setNamesrvAddr(registry);
        producer.start();
        try {
            producer.setCompressType(CompressionType.of(words.getString("compression")));
            byte[] body = words.getString("body").getBytes(StandardCharsets.UTF_8);
            return producer.send(new Message(words.getString("topic"), body)).getSendStatus().name();
        } finally {
            producer.shutdown();
        }
    }

    private Object setMode(JSONObject words) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(registry);
        admin.setInstanceName("admin-" + System.nanoTime());
        admin.start();
        try {
            MessageRequestMode mode = MessageRequestMode.valueOf(words.getString("mode"));
            admin.setMessageRequestMode(
                words.getString("broker"), words.getString("topic"), words.getString("group"), mode, 0, 5_000);
        } finally {
            admin.shutdown();
        }
        return null;
    }

    /** Starts a consumer that leaves the balance to the broker. */
    private Object consume(JSONObject words) throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(words.getString("group"), null, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(registry);
        consumer.setInstanceName("consumer-" + consumers.size());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(5_000);
        consumer.subscribe(words.getString("topic"), "*");
        String name = consumer.getInstanceName();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                JSONObject received = new JSONObject();
                received.put("consumer", name);
                received.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
                received.put("receipt", message.getProperty("POP_CK"));
                received.put("times", message.getReconsumeTimes());
                Pipe.say("received", received);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumers.add(consumer);
        return name;
    }
}
