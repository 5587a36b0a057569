package io.tidepool.examples;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Records of the generated data set: 27 features, the cluster that they were drawn from, a number
 * and a checksum, 128 bytes, little-endian. The other end of the format is in `acceptance/src/kmeans`.
 */
final class Records {
    static final int DIMENSIONS = 27;
    static final int BYTES = 128;
    private static final int CLUSTER_AT = DIMENSIONS * 4;
    private static final int CHECKSUM_AT = BYTES - 8;

    private Records() {}

    /** The features; an exception where the bytes are not those that were written. */
    static double[] features(byte[] record) {
        ByteBuffer bytes = checked(record);
        double[] values = new double[DIMENSIONS];
        for (int at = 0; at < DIMENSIONS; at++) {
            values[at] = bytes.getFloat(at * 4);
        }
        return values;
    }

    /** The cluster that a sound record was drawn from. */
    static int cluster(byte[] record) {
        return ByteBuffer.wrap(record).order(ByteOrder.LITTLE_ENDIAN).getInt(CLUSTER_AT);
    }

    private static ByteBuffer checked(byte[] record) {
        ByteBuffer bytes = ByteBuffer.wrap(record).order(ByteOrder.LITTLE_ENDIAN);
        long sum = 0x7469_6465_706f_6f6cL;
        for (int at = 0; at < CHECKSUM_AT; at += 8) {
            sum = Long.rotateLeft((sum ^ bytes.getLong(at)) * 0x9e37_79b9_7f4a_7c15L, 29);
        }
        if (sum != bytes.getLong(CHECKSUM_AT)) {
            long number = bytes.getLong(CLUSTER_AT + 4);
            throw new IllegalStateException("record " + number + " is damaged");
        }
        return bytes;
    }
}
