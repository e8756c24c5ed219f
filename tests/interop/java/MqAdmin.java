import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
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
        PrintStream out = System.out;
        say(out, "ready", new JSONObject());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject answer = new JSONObject();
            String[] words = JSON.parseObject(line).getJSONArray("words").toArray(new String[0]);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            MQAdminStartup.main0(words, null);
            capture.flush();
            answer.put("value", printed.toString(StandardCharsets.UTF_8));
            say(out, "done", answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void say(PrintStream out, String kind, JSONObject values) {
        values.put("kind", kind);
        out.println("\n@@" + values.toJSONString());
        out.flush();
    }
}
