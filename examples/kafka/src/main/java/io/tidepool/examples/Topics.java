package io.tidepool.examples;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/**
 * Creates topics whose records are stamped by the broker, so that a node with a wrong clock does not
 * have its samples deleted early: {@code Topics HOST:PORT PARTITIONS NAME...}. A program of its own
 * because Kafka's command line tools are not in this Maven artifact.
 */
public final class Topics {
    private Topics() {}

    public static void main(String[] arguments) throws Exception {
        int partitions = Integer.parseInt(arguments[1]);
        List<NewTopic> topics = new ArrayList<>();
        for (int i = 2; i < arguments.length; i++) {
            topics.add(new NewTopic(arguments[i], partitions, (short) 1)
                    .configs(Map.of("message.timestamp.type", "LogAppendTime")));
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            admin.createTopics(topics).all().get();
        }
        System.out.println("DONE");
    }
}
