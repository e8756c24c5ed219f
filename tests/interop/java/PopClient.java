import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
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
            case "pop":
                return pop(words);
            case "change":
                return change(words);
            case "ack":
                return ack(words);
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

    /** Asks as a part of the library: its push consumer asks neither in order nor by attempts. */
    private Object pop(JSONObject words) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(words.getString("group"));
        header.setTopic(words.getString("topic"));
        header.setQueueId(0);
        header.setMaxMsgNums(words.getIntValue("count"));
        header.setInvisibleTime(60_000);
        header.setPollTime(words.getIntValue("poll_ms"));
        header.setBornTime(System.currentTimeMillis());
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(true);
        header.setAttemptId(words.getString("attempt"));
        CompletableFuture<PopResult> popped = new CompletableFuture<>();
        api().popMessageAsync(words.getString("name"), words.getString("broker"), header, 10_000, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                popped.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                popped.completeExceptionally(error);
            }
        });
        List<JSONObject> found = new ArrayList<>();
        List<MessageExt> messages = popped.get(15, TimeUnit.SECONDS).getMsgFoundList();
        for (MessageExt message : messages == null ? List.<MessageExt>of() : messages) {
            JSONObject one = new JSONObject();
            one.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
            one.put("receipt", message.getProperty("POP_CK"));
            one.put("offset", message.getQueueOffset());
            one.put("times", message.getReconsumeTimes());
            found.add(one);
        }
        return found;
    }

    private Object change(JSONObject words) throws Exception {
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(words.getString("group"));
        header.setTopic(words.getString("topic"));
        header.setQueueId(0);
        header.setOffset(words.getLong("offset"));
        header.setExtraInfo(words.getString("receipt"));
        header.setInvisibleTime(words.getLong("invisible_ms"));
        Answer answer = new Answer();
        api().changeInvisibleTimeAsync(words.getString("name"), words.getString("broker"), header, 10_000, answer);
        return answer.result.get(15, TimeUnit.SECONDS).getExtraInfo();
    }

    private Object ack(JSONObject words) throws Exception {
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(words.getString("group"));
        header.setTopic(words.getString("topic"));
        header.setQueueId(0);
        header.setOffset(words.getLong("offset"));
        header.setExtraInfo(words.getString("receipt"));
        Answer answer = new Answer();
        api().ackMessageAsync(words.getString("broker"), 10_000, answer, header);
        return answer.result.get(15, TimeUnit.SECONDS).getStatus().name();
    }

    private MQClientAPIImpl api() {
        return consumers.get(0).getDefaultMQPushConsumerImpl().getmQClientFactory().getMQClientAPIImpl();
    }

    private static final class Answer implements AckCallback {
        final CompletableFuture<AckResult> result = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult found) {
            result.complete(found);
        }

        @Override
        public void onException(Throwable error) {
            result.completeExceptionally(error);
        }
    }
}
