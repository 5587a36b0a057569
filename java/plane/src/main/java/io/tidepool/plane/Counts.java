package io.tidepool.plane;

/** What is counted of messages. Flink reads and writes the fields. */
public final class Counts {

    /** Samples that were taken. */
    public long samples;
    /** Samples that came again. */
    public long repeated;
    /** Samples that came after a newer one, or of a start of the agent that has ended. */
    public long late;
    /** Messages and elements of messages that were not understood. */
    public long garbage;
    /** Samples whose clock is more than a minute off the job's. */
    public long skewed;
    /** Samples of clusters that are not served. */
    public long foreign;
    /** Readings of collectd that were given up for missing parts. */
    public long incomplete;
    /** Messages of nodes beyond the bound. */
    public long refused;
    /** Jobs that were left out of a sample for a bound. */
    public long trimmed;
    /** Control intervals of a policy. */
    public long decisions;
    /** Ceilings that were sent. */
    public long ceilings;

    /** For Flink. */
    public Counts() {
    }

    void add(Counts other) {
        samples += other.samples;
        repeated += other.repeated;
        late += other.late;
        garbage += other.garbage;
        skewed += other.skewed;
        foreign += other.foreign;
        incomplete += other.incomplete;
        refused += other.refused;
        trimmed += other.trimmed;
        decisions += other.decisions;
        ceilings += other.ceilings;
    }

    void write(JsonText text) {
        text.field("samples", samples).field("repeated", repeated).field("late", late)
                .field("garbage", garbage).field("skewed", skewed).field("foreign", foreign)
                .field("incomplete", incomplete).field("refused", refused)
                .field("trimmed", trimmed).field("decisions", decisions)
                .field("ceilings", ceilings);
    }
}
