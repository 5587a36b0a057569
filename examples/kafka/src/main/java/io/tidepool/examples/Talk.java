package io.tidepool.examples;

import java.io.BufferedReader;
import java.io.FileReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A user of Kafka who does what he is told, a line each: {@code Talk HOST:PORT [PROPERTIES]}. What
 * he does is answered by {@code ok}, or {@code refused} and why. Fields are separated by tabs.
 *
 * <pre>
 * send TOPIC KEY TEXT        a message
 * long TOPIC KEY BYTES       a message of so many bytes
 * set TOPIC NAME VALUE       a property of a topic
 * allow USER OPERATION TOPIC a right of a user
 * read TOPIC                 first answers with all messages of the topic, key and text a line
 * </pre>
 */
public final class Talk {
    private static final int SECONDS = 30;
    private static final int MOST_BYTES = 16 << 20;
    private static final int SHOWN_BYTES = 64 << 10;

    private final Map<String, Object> properties = new HashMap<>();
    private Admin admin;
    private KafkaProducer<byte[], byte[]> producer;

    private Talk(String[] arguments) throws IOException {
        if (arguments.length > 1) {
            Properties read = new Properties();
            try (FileReader file = new FileReader(arguments[1], StandardCharsets.UTF_8)) {
                read.load(file);
            }
            read.stringPropertyNames()
                    .forEach(name -> properties.put(name, read.getProperty(name)));
        }
        properties.put("bootstrap.servers", arguments[0]);
    }

    public static void main(String[] arguments) throws Exception {
        Talk talk = new Talk(arguments);
        try (BufferedReader lines = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(talk.answer(line.split("\t", -1)));
            }
        }
    }

    private String answer(String[] words) throws InterruptedException {
        try {
            switch (words[0]) {
                case "send" -> send(words[1], words[2], words[3].getBytes(StandardCharsets.UTF_8));
                case "long" -> send(words[1], words[2], filled(Integer.parseInt(words[3])));
                case "set" -> set(words[1], words[2], words[3]);
                case "allow" -> allow(words[1], words[2], words[3]);
                case "read" -> read(words[1]);
                default -> throw new IllegalArgumentException(words[0]);
            }
            return "ok";
        } catch (ExecutionException refused) {
            return "refused " + oneLine(refused.getCause());
        } catch (RuntimeException refused) {
            return "refused " + oneLine(refused);
        }
    }

    private static String oneLine(Throwable why) {
        return why.toString().replace('\n', ' ');
    }

    private static byte[] filled(int count) {
        byte[] bytes = new byte[count];
        Arrays.fill(bytes, (byte) '[');
        return bytes;
    }

    private void send(String topic, String key, byte[] message)
            throws ExecutionException, InterruptedException {
        if (producer == null) {
            Map<String, Object> all = new HashMap<>(properties);
            all.put("acks", "all");
            all.put("enable.idempotence", "false");
            all.put("max.request.size", MOST_BYTES);
            ByteArraySerializer plain = new ByteArraySerializer();
            producer = new KafkaProducer<>(all, plain, plain);
        }
        byte[] name = key.getBytes(StandardCharsets.UTF_8);
        producer.send(new ProducerRecord<>(topic, name, message)).get();
    }

    private Admin admin() {
        if (admin == null) {
            admin = Admin.create(properties);
        }
        return admin;
    }

    private void set(String topic, String name, String value)
            throws ExecutionException, InterruptedException {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp change =
                new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
        admin().incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    private void allow(String user, String operation, String topic)
            throws ExecutionException, InterruptedException {
        AclBinding right = new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL),
                new AccessControlEntry("User:" + user, "*", AclOperation.fromString(operation),
                        AclPermissionType.ALLOW));
        admin().createAcls(List.of(right)).all().get();
    }

    private void read(String topic) {
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, plain, plain)) {
            List<TopicPartition> partitions =
                    consumer.partitionsFor(topic, Duration.ofSeconds(SECONDS)).stream()
                            .map(found -> new TopicPartition(topic, found.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (ends.entrySet().stream()
                    .anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
                consumer.poll(Duration.ofSeconds(1)).forEach(Talk::show);
            }
        }
    }

    private static void show(ConsumerRecord<byte[], byte[]> record) {
        if (record.key() != null && record.value().length <= SHOWN_BYTES) {
            String text = new String(record.value(), StandardCharsets.UTF_8);
            System.out.println(new String(record.key(), StandardCharsets.UTF_8) + '\t'
                    + text.replace('\n', ' '));
        }
    }
}
