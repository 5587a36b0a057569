package io.tidepool.plane;

/** What one instance of a function keeps beside its nodes. Flink reads and writes the fields. */
public final class PlaneFacts {

    /** Run of the job, over restores. */
    public String plane;
    /** Nodes that it knows. */
    public long nodes;
    /** Jobs that are kept of all nodes. */
    public long jobs;
    /** Highest number of a ceiling among nodes that it forgot: none begins below. */
    public long forgottenNumber;

    /** For Flink. */
    public PlaneFacts() {
    }
}
