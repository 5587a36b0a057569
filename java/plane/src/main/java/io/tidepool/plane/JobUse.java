package io.tidepool.plane;

/** Memory of one job on one node. Flink reads and writes the fields. */
public final class JobUse {

    /** Name that the scheduler has for the job. */
    public String name;
    /** Who runs it; empty where that is not known. */
    public String user;
    /** Bytes that it uses on the node. */
    public long bytes;

    /** For Flink. */
    public JobUse() {
    }

    JobUse(String name, String user, long bytes) {
        this.name = name;
        this.user = user;
        this.bytes = bytes;
    }
}
