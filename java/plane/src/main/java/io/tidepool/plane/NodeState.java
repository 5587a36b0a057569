package io.tidepool.plane;

/** What the job keeps of one node, in checkpoints as well. Flink reads and writes the fields. */
public final class NodeState {

    private static final String[] NO_NAMES = {};
    private static final long[] NO_BYTES = {};

    /** When the job last heard from the node, by the job's clock. */
    public long heardMs;
    /** Start of the agent whose samples are taken. */
    public String start;
    /** Starts before it, the latest one first. */
    public String[] oldStarts = NO_NAMES;
    /** Number of the last sample that was taken. */
    public long lastNumber;
    /** Which of the 64 numbers up to it were seen; the lowest bit is the last one. */
    public long seen;
    /** The node's clock in the last sample. */
    public long lastAtMs;

    /** Whether the law has spoken; what it said, and on which sample. */
    public boolean decided;
    /** The law's last word: capacity of all stores together. */
    public long capacityBytes;
    /** Number of the sample of the last control interval. */
    public long decidedNumber;
    /** The node's clock in it. */
    public long decidedAtMs;

    /** Number of the last ceiling; 0 before the first. */
    public long ceilingNumber;
    /** Number of the sample of the last ceiling. */
    public long sentNumber;
    /** The node's clock in it. */
    public long sentAtMs;
    /** Stores of the last ceiling. */
    public String[] sentStores = NO_NAMES;
    /** Their ceilings. */
    public long[] sentBytes = NO_BYTES;

    /** Of collectd: the reading that is being joined, by its time; 0 where there is none. */
    public long joinedMs;
    /** Which parts of it are there. */
    public int joinedParts;
    /** Their bytes. */
    public long[] joinedBytes = NO_BYTES;
    /** Memory of the node by its last full reading; 0 before the first. */
    public long fullBytes;

    /** For Flink. */
    public NodeState() {
    }
}
