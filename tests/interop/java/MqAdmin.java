import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin behind a pipe: {"do": "run", "words": [...]} on stdin, what it prints on stdout
 * (tests/oracles/piped_client.py). One process for all commands, because starting Java takes a second.
 */
public class MqAdmin {
    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.namesrv.addr", arguments[0]);
        Pipe.serve(MqAdmin::run);
    }

    private static String run(JSONObject command) {
        String[] words = command.getJSONArray("words").toArray(new String[0]);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        MQAdminStartup.main0(words, null);
        capture.flush();
        return printed.toString(StandardCharsets.UTF_8);
    }
}
