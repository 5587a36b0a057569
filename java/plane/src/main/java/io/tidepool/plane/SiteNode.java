package io.tidepool.plane;

/** What a policy for a whole site keeps of one node. Flink reads and writes the fields. */
public final class SiteNode {

    private static final long[] NO_BYTES = {};

    /** The last sample of the node. */
    public Reading sample;
    /** When it came, by the job's clock. */
    public long heardMs;
    /** Whether it was looked at, and answered where there was need. */
    public boolean answered;
    /** Number of the last ceiling; 0 before the first. */
    public long ceilingNumber;
    /** When it was sent, by the job's clock. */
    public long sentMs;
    /** Hash of the names of its stores. */
    public long sentNames;
    /** Their ceilings. */
    public long[] sentBytes = NO_BYTES;

    /** For Flink. */
    public SiteNode() {
    }
}
