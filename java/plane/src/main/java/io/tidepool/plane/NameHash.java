package io.tidepool.plane;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/** Names that are only compared are kept as eight bytes, however long they are. */
final class NameHash {

    /** No name has a character of control in it. */
    private static final byte END = '\n';

    private NameHash() {
    }

    /** The same for the same names in the same order. */
    static long of(String... names) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            for (String name : names) {
                digest.update(name.getBytes(StandardCharsets.UTF_8));
                digest.update(END);
            }
            return ByteBuffer.wrap(digest.digest()).getLong();
        } catch (NoSuchAlgorithmException none) {
            throw new IllegalStateException("every JDK has SHA-256", none);
        }
    }
}
