package io.tidepool.plane;

/**
 * What the job keeps of one node, in checkpoints as well. Flink reads and writes the fields; one
 * that a checkpoint of before has no more is dropped, and a new one is empty.
 */
public final class NodeState {

    private static final long[] NONE = {};

    /** When the job last heard from the node, by the job's clock. */
    public long heardMs;
    /** Jobs of the last sample that are kept. */
    public int jobs;
    /** Start of the agent whose samples are taken. */
    public String start;
    /** Hashes of starts before it, the latest one first. */
    public long[] oldStartHashes = NONE;
    /** The last number of each. */
    public long[] oldNumbers = NONE;
    /** When the last sample was taken, by the broker's clock where it tells, else by the job's. */
    public long takenMs;
    /** Time that one step of the number stands for. */
    public long stepMs;
    /** The highest number near which another one was; -1 before the first. */
    public long sureNumber;
    /** Number of the last sample that was taken. */
    public long lastNumber;
    /** Since when samples come one after another that are behind, by the broker; 0 for none. */
    public long lateSinceMs;
    /** Number of the last of them; of collectd its time. */
    public long lateNumber;
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
    /** Hash of the names of the stores of the last ceiling. */
    public long sentNames;
    /** Their ceilings. */
    public long[] sentBytes = NONE;

    /** Of collectd: when a part was taken last, by the clock of {@link #takenMs}. */
    public long partMs;
    /** Of collectd: the latest time near which another one was. */
    public long sureMs;
    /** Of collectd: the reading that is being joined, by its time; 0 where there is none. */
    public long joinedMs;
    /** Which parts of it are there. */
    public int joinedParts;
    /** Their bytes. */
    public long[] joinedBytes = NONE;
    /** Memory of the node by its last full reading; 0 before the first. */
    public long fullBytes;

    /** For Flink. */
    public NodeState() {
    }
}
