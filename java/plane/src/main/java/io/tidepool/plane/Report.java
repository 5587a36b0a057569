package io.tidepool.plane;

/**
 * What became of one message, and what it says for the sums. Flink reads and writes the fields.
 */
public final class Report {

    private static final JobUse[] NO_JOBS = {};

    /** Run of the job, over restores. */
    public String plane = "";
    /** Cluster of the node; empty where it is not known. */
    public String cluster = "";
    /** Name of the node; empty where it is not known. */
    public String node = "";
    /** Whether the values below are there: of a sample that was taken. */
    public boolean taken;
    /** Rack of the node; empty where it is not known. */
    public String rack = "";
    /** Memory of the node. */
    public long totalBytes;
    /** Bytes that jobs could have, or {@link Reading#UNKNOWN}. */
    public long availableBytes;
    /** Memory that jobs use. */
    public long demandBytes;
    /** Bytes in all stores of the node. */
    public long residentBytes;
    /** Bytes that all stores of the node may hold at present. */
    public long capacityBytes;
    /** Jobs on the node. */
    public JobUse[] jobs = NO_JOBS;
    /** Sum of the ceilings in force, or {@link Reading#UNKNOWN} where this report has none. */
    public long ceilingBytes = Reading.UNKNOWN;
    /** Time between the broker and the decision, or {@link Reading#UNKNOWN}. */
    public long lagMs = Reading.UNKNOWN;
    /** What is to be counted. */
    public Counts counts = new Counts();

    /** For Flink. */
    public Report() {
    }

    static Report of(String plane, String cluster, String node) {
        Report report = new Report();
        report.plane = plane;
        report.cluster = cluster;
        report.node = node;
        return report;
    }

    /** Takes over what a sample says. */
    void take(Reading sample) {
        taken = true;
        rack = sample.rack;
        totalBytes = sample.totalBytes;
        availableBytes = sample.availableBytes;
        demandBytes = sample.demandBytes;
        for (StoreFacts store : sample.stores) {
            residentBytes = Law.add(residentBytes, store.residentBytes);
            capacityBytes = Law.add(capacityBytes, store.capacityBytes);
        }
        jobs = sample.jobs;
    }

    /** Begins to count anew. */
    void forgetCounts() {
        counts = new Counts();
        lagMs = Reading.UNKNOWN;
    }
}
