import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.Optional;
import java.util.regex.Pattern;

/** Curbstone from Java 17: make a queue, put a message in, take it and say that it is done. Run it with java Quick.java */
public class Quick {
    static final String QUEUE = Optional.ofNullable(System.getenv("CURBSTONE_URL")).orElse("http://127.0.0.1:8080")
            + "/v2/demo/queues/hello-java";
    static final HttpClient HTTP = HttpClient.newHttpClient();

    static String call(String method, String path, String body, String type) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(QUEUE + path))
                .header("Content-Type", type)
                .method(method, BodyPublishers.ofString(body))
                .build();
        var reply = HTTP.send(request, BodyHandlers.ofString());
        if (reply.statusCode() >= 300) throw new IllegalStateException(reply.body());
        return reply.body();
    }

    /** A member of a JSON text; take the JSON library of your application instead. */
    static String member(String json, String name) {
        var found = Pattern.compile("\"" + name + "\":\"(.*?)\"").matcher(json);
        if (!found.find()) throw new IllegalStateException("no " + name + " in " + json);
        return found.group(1);
    }

    public static void main(String[] args) throws Exception {
        call("PUT", "", "{}", "application/json");
        call("POST", "/messages", "hello", "text/plain"); // on disk when it returns
        var taken = call("POST", "/messages/lease", "{\"wait\": 10, \"seconds\": 60}", "application/json");
        System.out.println("got " + member(taken, "message"));
        // Without this the message is delivered again after 60 s.
        call("POST", "/messages/ack", "{\"ackIds\": [\"" + member(taken, "ackId") + "\"]}", "application/json");
    }
}
