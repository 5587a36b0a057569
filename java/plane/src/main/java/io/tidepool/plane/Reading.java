package io.tidepool.plane;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * What one message, or one element of it, says. Flink reads and writes the fields. A message that
 * says nothing is a reading as well: it is counted where the others are.
 */
public final class Reading {

    /** A sample of a node. */
    public static final int SAMPLE = 0;
    /** One of the six messages that collectd sends for each reading of memory. */
    public static final int PART = 1;
    /** Not understood. */
    public static final int GARBAGE = 2;
    /** Of a cluster that this job does not serve. */
    public static final int FOREIGN = 3;

    /** Bytes available are not known. */
    public static final long UNKNOWN = -1;

    private static final StoreFacts[] NO_STORES = {};
    private static final JobUse[] NO_JOBS = {};

    /** One of the kinds above. */
    public int kind;
    /** Cluster of the node; empty where it is not known. */
    public String cluster = "";
    /** Name of the node; empty where it is not known. */
    public String node = "";
    /** This start of the agent; empty for collectd, which has none. */
    public String start = "";
    /** Rises within a start. */
    public long number;
    /** Time that one step of the number stands for, in milliseconds. */
    public long stepMs = 1;
    /** The node's own clock. */
    public long atMs;
    /** When the broker took the message, or when it was produced, as the topic says. */
    public long recordMs;
    /** Memory of the node. */
    public long totalBytes;
    /** Bytes that jobs could have without touching a store, or {@link #UNKNOWN}. */
    public long availableBytes = UNKNOWN;
    /** Memory that jobs use. */
    public long demandBytes;
    /** Rack of the node; empty where it is not known. */
    public String rack = "";
    /** Stores of the node. */
    public StoreFacts[] stores = NO_STORES;
    /** Jobs on the node. */
    public JobUse[] jobs = NO_JOBS;
    /** Jobs and their names that were left out for a bound. */
    public int trimmed;
    /** Of collectd: which of the six, by its place in {@link CollectdReader#PARTS}. */
    public int part;
    /** Of collectd: its bytes. */
    public long partBytes;

    /** For Flink. */
    public Reading() {
    }

    static Reading of(int kind, long recordMs) {
        Reading reading = new Reading();
        reading.kind = kind;
        reading.recordMs = recordMs;
        return reading;
    }

    /** Whether the key of its record names its node, as all agents have it. */
    boolean isOf(byte[] recordKey) {
        return Arrays.equals(recordKey, node.getBytes(StandardCharsets.UTF_8));
    }

    /** What the state of the node is kept by. No name has a character of control in it. */
    String key() {
        return cluster + '\n' + node;
    }
}
