package io.tidepool.plane;

/** Sums of one cluster, rack or job at one moment. Flink reads and writes the fields. */
public final class Summary {

    /** Key of the message: what it is the sum of. */
    public String key;
    /** The sums as JSON. */
    public String text;

    /** For Flink. */
    public Summary() {
    }

    Summary(String key, String text) {
        this.key = key;
        this.text = text;
    }
}
