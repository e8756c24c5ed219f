import com.hivemq.embedded.EmbeddedExtension;
import com.hivemq.embedded.EmbeddedHiveMQ;
import com.hivemq.extension.sdk.api.ExtensionMain;
import com.hivemq.extension.sdk.api.auth.SimpleAuthenticator;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStartOutput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopInput;
import com.hivemq.extension.sdk.api.parameter.ExtensionStopOutput;
import com.hivemq.extension.sdk.api.services.Services;
import java.nio.file.Files;
import java.nio.file.Path;

/** HiveMQ CE over the directory given: conf/config.xml and data. It lets everybody in. */
public class HiveMqEmbedded {
    public static void main(String[] words) throws Exception {
        Path home = Path.of(words[0]);
        EmbeddedExtension open = EmbeddedExtension.builder()
                .withId("open")
                .withName("open")
                .withVersion("1")
                .withPriority(1)
                .withStartPriority(1000)
                .withAuthor("iotmq")
                .withExtensionMain(new Open())
                .build();
        EmbeddedHiveMQ server = EmbeddedHiveMQ.builder()
                .withConfigurationFolder(home.resolve("conf"))
                .withDataFolder(Files.createDirectories(home.resolve("data")))
                .withExtensionsFolder(Files.createDirectories(home.resolve("extensions")))
                .withEmbeddedExtension(open)
                .build();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> server.stop().join()));
        server.start().join();
        Thread.currentThread().join();
    }

    /** Without an authenticator HiveMQ refuses every device. */
    static class Open implements ExtensionMain {
        @Override
        public void extensionStart(ExtensionStartInput input, ExtensionStartOutput output) {
            SimpleAuthenticator open = (from, to) -> to.authenticateSuccessfully();
            Services.securityRegistry().setAuthenticatorProvider(each -> open);
        }

        @Override
        public void extensionStop(ExtensionStopInput input, ExtensionStopOutput output) {}
    }
}
