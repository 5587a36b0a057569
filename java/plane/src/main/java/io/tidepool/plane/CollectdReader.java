package io.tidepool.plane;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.Serializable;
import java.util.List;
import java.util.function.Consumer;

/**
 * Reads what collectd's plug-ins {@code memory} and {@code write_kafka} send: arrays of values, for
 * each reading of memory six messages of one value each. Values of other plug-ins are passed over;
 * those of another host than the key of their record count as not understood.
 */
final class CollectdReader implements Serializable {

    /** Kinds of memory in one reading. Together they are the memory of the node. */
    static final List<String> PARTS =
            List.of("used", "buffered", "cached", "free", "slab_unrecl", "slab_recl");

    private static final List<String> AVAILABLE =
            List.of("buffered", "cached", "free", "slab_recl");

    /** Name of the plug-in, and of its values in bytes; those in percent have another one. */
    private static final String MEMORY = "memory";

    private static final long serialVersionUID = 1;
    private static final int MS_PER_S = 1000;
    /** Earliest time that is believed, in milliseconds; 0 stands for no reading elsewhere. */
    private static final long EARLIEST_MS = 1;

    /** Cluster of all nodes that collectd tells of: its messages name none. */
    private final String cluster;

    CollectdReader(String cluster) {
        this.cluster = cluster;
    }

    /** Whether jobs could have this part of memory. */
    static boolean isAvailable(int part) {
        return AVAILABLE.contains(PARTS.get(part));
    }

    void read(byte[] key, byte[] message, long recordMs, Consumer<Reading> out) {
        if (message == null || message.length > Json.MESSAGE_BYTES) {
            out.accept(Reading.of(Reading.GARBAGE, recordMs));
            return;
        }
        try {
            Json json = new Json(message);
            if (json.next() != JsonToken.START_ARRAY) {
                out.accept(Reading.of(Reading.GARBAGE, recordMs));
                return;
            }
            for (JsonToken next = json.next(); next != JsonToken.END_ARRAY; next = json.next()) {
                one(json, key, recordMs, out);
            }
        } catch (IOException | RuntimeException broken) {
            out.accept(Reading.of(Reading.GARBAGE, recordMs));
        }
    }

    private void one(Json json, byte[] key, long recordMs, Consumer<Reading> out)
            throws IOException {
        json.bad = false;
        Reading part = Reading.of(Reading.PART, recordMs);
        part.cluster = cluster;
        part.partBytes = -1;
        String plugin = null;
        String type = null;
        String instance = null;
        if (json.isObject()) {
            for (String name = json.field(); name != null; name = json.field()) {
                switch (name) {
                    case "host" -> part.node = json.name(Json.NODE_NAME);
                    case "time" -> part.atMs = json.scaled(MS_PER_S);
                    case "plugin" -> plugin = json.shortName(Json.NAME);
                    case "type" -> type = json.shortName(Json.NAME);
                    case "type_instance" -> instance = json.shortName(Json.NAME);
                    case "values" -> part.partBytes = value(json);
                    default -> json.skip();
                }
            }
        }
        boolean whole = !part.node.isEmpty() && part.atMs >= EARLIEST_MS && part.partBytes >= 0
                && part.isOf(key);
        if (plugin != null && !plugin.equals(MEMORY)) {
            return;
        }
        if (json.bad || !whole || plugin == null || type == null || instance == null) {
            out.accept(Reading.of(Reading.GARBAGE, recordMs));
        } else if (type.equals(MEMORY) && PARTS.contains(instance)) {
            part.part = PARTS.indexOf(instance);
            out.accept(part);
        }
    }

    /** The first value; of those after it nothing is known. A value of null was not measured. */
    private static long value(Json json) throws IOException {
        long value = -1;
        if (json.isArray()) {
            for (JsonToken next = json.next(); next != JsonToken.END_ARRAY; next = json.next()) {
                if (json.isNull() || value >= 0) {
                    json.skip();
                } else {
                    value = json.scaled(1);
                }
            }
        }
        return value;
    }
}
