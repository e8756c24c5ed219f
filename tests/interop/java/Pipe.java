import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * What clients have in common that are driven by a pipe (tests/oracles/piped_client.py): commands come as JSON
 * lines on stdin, results and what a client says of itself go to stdout.
 */
final class Pipe {
    /** Carries out one command; its result becomes JSON. */
    interface Client {
        Object run(JSONObject words) throws Exception;
    }

    // A library's own output may be sent elsewhere meanwhile.
    private static final PrintStream OUT = System.out;

    private Pipe() {
    }

    /** Says that the client is ready, and carries out commands until stdin ends. Then the process ends. */
    static void serve(Client client) throws IOException {
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
        // Without the libraries' own ways to end, which wait for their threads.
        Runtime.getRuntime().halt(0);
    }

    static synchronized void say(String kind, JSONObject values) {
        values.put("kind", kind);
        OUT.println("\n@@" + values.toJSONString());
        OUT.flush();
    }
}
