package io.tidepool.plane;

/** What a sample says of one store of a node. Flink reads and writes the fields. */
public final class StoreFacts {

    /** Name, unique on the node. */
    public String name;
    /** Bytes that the store really holds. */
    public long residentBytes;
    /** Bytes that it may hold now. */
    public long capacityBytes;
    /** Bytes that it never goes below. */
    public long minBytes;
    /** Bytes that it never goes above. */
    public long maxBytes;
    /** Unit in which its capacity changes. */
    public long blockBytes;
    /** Bytes that cannot be given back now. */
    public long heldBytes;

    /** For Flink. */
    public StoreFacts() {
    }

    StoreFacts(String name, long capacityBytes, long minBytes, long maxBytes, long blockBytes) {
        this.name = name;
        this.capacityBytes = capacityBytes;
        this.minBytes = minBytes;
        this.maxBytes = maxBytes;
        this.blockBytes = blockBytes;
    }

    /** The highest size; at least the guaranteed part. */
    long ceilingBytes() {
        return Math.max(minBytes, maxBytes);
    }
}
