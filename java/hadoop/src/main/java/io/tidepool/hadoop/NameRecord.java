/*
 * Parses a record of the native library: the status of one name.
 */
package io.tidepool.hadoop;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

final class NameRecord {

    /** Bytes of a record without its name; the native library has the same. */
    static final int BYTES = 80;

    private static final int NAME_IS_TEXT = 1;
    private static final int KIND = 0170000;
    private static final int DIRECTORY = 0040000;
    private static final int REGULAR = 0100000;
    private static final int LINK = 0120000;

    private static final VarHandle SHORTS =
            MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle INTS =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle LONGS =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

    private final byte[] bytes;
    private int at;

    /** Reads records out of an array, beginning with the one at this place. */
    NameRecord(byte[] bytes, int at) {
        this.bytes = bytes;
        this.at = at;
    }

    /** Moves to the next record. */
    void next() {
        at += (int) INTS.get(bytes, at);
    }

    /** Length of the file for readers, in bytes. */
    long length() {
        return (long) LONGS.get(bytes, at + 8);
    }

    /** Time of the last change of content, in milliseconds since 1970. */
    long modifiedMs() {
        return (long) LONGS.get(bytes, at + 16);
    }

    /** Time of the last read, in milliseconds since 1970. */
    long accessedMs() {
        return (long) LONGS.get(bytes, at + 24);
    }

    /** Mode bits, with the kind. */
    int mode() {
        return (int) INTS.get(bytes, at + 32);
    }

    /** Number of the owner. */
    int user() {
        return (int) INTS.get(bytes, at + 36);
    }

    /** Number of the group. */
    int group() {
        return (int) INTS.get(bytes, at + 40);
    }

    /** Number of the file in its file system. */
    long inode() {
        return (long) LONGS.get(bytes, at + 48);
    }

    /** Number of the file system. */
    long device() {
        return (long) LONGS.get(bytes, at + 56);
    }

    /** Time of the last change of content, in nanoseconds since 1970. */
    long modifiedNs() {
        return (long) LONGS.get(bytes, at + 64);
    }

    boolean isDirectory() {
        return (mode() & KIND) == DIRECTORY;
    }

    boolean isRegular() {
        return (mode() & KIND) == REGULAR;
    }

    boolean isLink() {
        return (mode() & KIND) == LINK;
    }

    /** The name behind the record; bytes that are not UTF-8 are surrogates U+DC80 to U+DCFF. */
    String name() {
        int length = (short) SHORTS.get(bytes, at + 4) & 0xffff;
        int start = at + BYTES;
        if (((short) SHORTS.get(bytes, at + 6) & NAME_IS_TEXT) != 0) {
            return new String(bytes, start, length, StandardCharsets.UTF_8);
        }
        return text(bytes, start, length);
    }

    /** Decodes what is UTF-8 and escapes the bytes that are not, as {@link #name} says. */
    static String text(byte[] bytes, int start, int length) {
        StringBuilder text = new StringBuilder(length);
        int end = start + length;
        int from = start;
        while (from < end) {
            int to = from;
            // The longest text that is UTF-8: it decodes to what encodes to the same bytes.
            int width = width(bytes, from, end);
            while (width > 0) {
                to += width;
                width = to < end ? width(bytes, to, end) : 0;
            }
            text.append(new String(bytes, from, to - from, StandardCharsets.UTF_8));
            if (to < end) {
                text.append((char) (0xdc00 | bytes[to] & 0xff));
                to++;
            }
            from = to;
        }
        return text.toString();
    }

    /** Bytes of the character at a place; 0 where there is none. */
    private static int width(byte[] bytes, int at, int end) {
        for (int width = 1; width <= 4 && at + width <= end; width++) {
            String text = new String(bytes, at, width, StandardCharsets.UTF_8);
            byte[] again = text.getBytes(StandardCharsets.UTF_8);
            if (text.codePointCount(0, text.length()) == 1
                    && Arrays.equals(again, Arrays.copyOfRange(bytes, at, at + width))) {
                return width;
            }
        }
        return 0;
    }
}
