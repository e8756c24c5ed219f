import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.hivemq.client.mqtt.MqttClientTransportConfig;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.lifecycle.MqttClientAutoReconnect;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5Client;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperty;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishResult;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;

/**
 * HiveMQ's client of MQTT 5 behind a pipe (tests/oracles/piped_client.py), called as the MQTT driver of the
 * OpenMessaging Benchmark calls it. A message begins with the numbers of its producer and of itself.
 */
public class HiveMqClient {
    private static final String STAMP = "benchmark-publish-timestamp";

    private final int port;
    private final Map<String, Mqtt5AsyncClient> clients = new ConcurrentHashMap<>();
    private final Map<String, ConcurrentLinkedQueue<long[]>> received = new ConcurrentHashMap<>();

    private HiveMqClient(int port) {
        this.port = port;
    }

    public static void main(String[] arguments) throws Exception {
        Pipe.serve(new HiveMqClient(Integer.parseInt(arguments[0]))::run);
    }

    private Object run(JSONObject words) throws Exception {
        switch (words.getString("do")) {
            case "producer":
                return producer(words);
            case "consumer":
                return consumer(words);
            case "send":
                return send(words);
            case "received":
                return received(words);
            case "close":
                clients.remove(words.getString("name")).disconnect().get(10, TimeUnit.SECONDS);
                return null;
            default:
                throw new IllegalArgumentException(words.getString("do"));
        }
    }

    /** A client of that name that connects again by itself; connections and losses follow as lines. */
    private Mqtt5AsyncClient client(String name) {
        Mqtt5AsyncClient client = Mqtt5Client.builder()
            .identifier(name)
            .transportConfig(MqttClientTransportConfig.builder()
                .serverHost("127.0.0.1")
                .serverPort(port)
                .socketConnectTimeout(3, TimeUnit.SECONDS)
                .mqttConnectTimeout(3, TimeUnit.SECONDS)
                .build())
            .automaticReconnect(MqttClientAutoReconnect.builder()
                .initialDelay(100, TimeUnit.MILLISECONDS)
                .maxDelay(10, TimeUnit.SECONDS)
                .build())
            .addConnectedListener(context -> state("connected", name))
            .addDisconnectedListener(context -> state("disconnected", name))
            .buildAsync();
        clients.put(name, client);
        return client;
    }

    private static void state(String kind, String name) {
        JSONObject line = new JSONObject();
        line.put("name", name);
        Pipe.say(kind, line);
    }

    private Object producer(JSONObject words) throws Exception {
        return told(client(words.getString("name")).connect().get(10, TimeUnit.SECONDS));
    }

    /**
     * A member of a shared subscription; "clean", "expiry_s" and "receive_maximum" are for its CONNECT. The
     * subscription is asked for before there is a connection, and what came of it follows as a line.
     */
    private Object consumer(JSONObject words) throws Exception {
        String name = words.getString("name");
        Mqtt5AsyncClient client = client(name);
        ConcurrentLinkedQueue<long[]> messages =
            received.computeIfAbsent(name, key -> new ConcurrentLinkedQueue<>());
        client.subscribeWith()
            .topicFilter("$share/" + words.getString("subscription") + "/" + words.getString("topic"))
            .qos(MqttQos.fromCode(words.getIntValue("qos")))
            .callback(message -> {
                messages.add(seen(message));
                message.acknowledge();
            })
            .manualAcknowledgement(true)
            .send()
            .whenComplete((subAck, error) -> {
                JSONObject line = new JSONObject();
                line.put("name", name);
                line.put("result", error == null ? subAck.getReasonCodes().toString() : error.toString());
                Pipe.say("subscribed", line);
            });
        boolean clean = words.getBooleanValue("clean");
        return told(client.connectWith()
            .cleanStart(clean)
            .sessionExpiryInterval(clean ? 0 : words.getLongValue("expiry_s"))
            .restrictions()
            .receiveMaximum(words.getIntValue("receive_maximum"))
            .applyRestrictions()
            .send()
            .get(10, TimeUnit.SECONDS));
    }

    private static Object told(Mqtt5ConnAck connAck) {
        JSONObject values = new JSONObject();
        values.put("reason", connAck.getReasonCode().name());
        values.put("session_present", connAck.isSessionPresent());
        values.put("can_share", connAck.getRestrictions().isSharedSubscriptionAvailable());
        return values;
    }

    /** Producer, number, age in milliseconds (-1 without a stamp) and size of a message. */
    private static long[] seen(Mqtt5Publish message) {
        ByteBuffer payload = ByteBuffer.wrap(message.getPayloadAsBytes());
        int size = payload.remaining();
        long age = -1;
        for (Mqtt5UserProperty each : message.getUserProperties().asList()) {
            if (each.getName().toString().equals(STAMP)) {
                age = System.currentTimeMillis() - Long.parseLong(each.getValue().toString());
            }
        }
        return new long[] {payload.getInt(), payload.getInt(), age, size};
    }

    /** "count" messages of each of "names", all under way at once; what failed. */
    private Object send(JSONObject words) throws Exception {
        JSONArray names = words.getJSONArray("names");
        MqttQos qos = MqttQos.fromCode(words.getIntValue("qos"));
        List<CompletableFuture<Mqtt5PublishResult>> results = new ArrayList<>();
        int first = words.getIntValue("first");
        for (int number = first; number < first + words.getIntValue("count"); number++) {
            for (int from = 0; from < names.size(); from++) {
                ByteBuffer payload = ByteBuffer.allocate(words.getIntValue("bytes"));
                payload.putInt(from).putInt(number);
                results.add(clients.get(names.getString(from)).publishWith()
                    .topic(words.getString("topic"))
                    .payload(payload.array())
                    .qos(qos)
                    .userProperties()
                    .add(STAMP, String.valueOf(System.currentTimeMillis()))
                    .applyUserProperties()
                    .send());
            }
        }
        JSONArray failed = new JSONArray();
        for (CompletableFuture<Mqtt5PublishResult> each : results) {
            each.get(30, TimeUnit.SECONDS).getError().ifPresent(error -> failed.add(error.toString()));
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
