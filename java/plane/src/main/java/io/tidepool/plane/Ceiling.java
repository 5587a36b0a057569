package io.tidepool.plane;

import java.nio.charset.StandardCharsets;

/** Ceilings of the stores of one node, for a lease. Flink reads and writes the fields. */
public final class Ceiling {

    /** Cluster of the node. */
    public String cluster;
    /** Name of the node. */
    public String node;
    /** Run of the job, over restores. */
    public String plane;
    /** Rises by node. */
    public long number;
    /** Start of the agent in the sample that it answers. */
    public String sampleStart;
    /** Number of that sample. */
    public long sampleNumber;
    /** The node's clock in that sample. */
    public long sampleAtMs;
    /** The job's clock. */
    public long atMs;
    /** How long the node goes by it. */
    public long leaseMs;
    /** Name of the policy that decided. */
    public String policy;
    /** Names of the stores. */
    public String[] stores;
    /** Most bytes that each may hold. */
    public long[] ceilingBytes;
    /** Bytes that each keeps in any case, as its sample says. */
    public long[] floorBytes;

    /** For Flink. */
    public Ceiling() {
    }

    /** The ceiling that answers a sample, with whatever is the same in all of them. */
    static Ceiling of(Options options, String plane, Reading sample, long number, long[] bytes) {
        Ceiling ceiling = new Ceiling();
        ceiling.cluster = sample.cluster;
        ceiling.node = sample.node;
        ceiling.plane = plane;
        ceiling.number = number;
        ceiling.sampleStart = sample.start;
        ceiling.sampleNumber = sample.number;
        ceiling.sampleAtMs = sample.atMs;
        ceiling.leaseMs = options.leaseMs;
        ceiling.policy = options.policy.text;
        ceiling.stores = names(sample.stores);
        ceiling.ceilingBytes = bytes;
        ceiling.floorBytes = new long[bytes.length];
        for (int i = 0; i < bytes.length; i++) {
            ceiling.floorBytes[i] = sample.stores[i].minBytes;
        }
        return ceiling;
    }

    static String[] names(StoreFacts[] stores) {
        String[] names = new String[stores.length];
        for (int i = 0; i < stores.length; i++) {
            names[i] = stores[i].name;
        }
        return names;
    }

    byte[] json() {
        JsonText text = new JsonText().open().field("form", 1).field("cluster", cluster)
                .field("node", node).field("plane", plane).field("number", number)
                .field("sample_start", sampleStart).field("sample_number", sampleNumber)
                .field("sample_at_ms", sampleAtMs).field("at_ms", atMs).field("lease_ms", leaseMs)
                .field("policy", policy).array("stores");
        for (int i = 0; i < stores.length; i++) {
            text.open().field("name", stores[i]).field("ceiling_bytes", ceilingBytes[i])
                    .field("floor_bytes", floorBytes[i]).close();
        }
        return text.end().close().toString().getBytes(StandardCharsets.UTF_8);
    }
}
