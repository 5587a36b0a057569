/*
 * Names and metadata below tide:/// by system calls on the parallel file system, as the user of
 * this process. One call of the native library each; no node is needed for any of them. Knows
 * nothing of Hadoop's classes and keeps no state but the names of users and groups.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.concurrent.ConcurrentHashMap;

final class NativeNames {

    /** Bits of {@link #access}, those of access(2). */
    static final int READ = 4;
    static final int WRITE = 2;
    static final int EXECUTE = 1;

    /** How {@link #setAttribute} treats an attribute that is there, or is not. */
    static final int SET = 0;
    static final int CREATE = 1;
    static final int REPLACE = 2;

    private static final ConcurrentHashMap<Integer, String> USERS = new ConcurrentHashMap<>();
    private static final ConcurrentHashMap<Integer, String> GROUPS = new ConcurrentHashMap<>();

    private final NativeClient client;

    NativeNames(NativeClient client) {
        this.client = client;
    }

    /**
     * Puts the record of a name into {@code record}.
     *
     * @param follow whether symbolic links are followed
     * @return false where nothing is there
     */
    boolean status(String path, boolean follow, byte[] record) throws IOException {
        return client.ask(handle -> status(handle, path, follow, record) == 0);
    }

    /** The packed list of a directory; see {@link ListedEntries}. */
    byte[] list(String path, int entriesMax) throws IOException {
        return client.ask(handle -> list(handle, path, entriesMax));
    }

    /** Makes a directory and those above it, with this mode whatever the umask of the process. */
    void makeDirectories(String path, int mode) throws IOException {
        client.order(handle -> makeDirectories(handle, path, mode));
    }

    /** Makes one directory, in one that is there. */
    void makeDirectory(String path, int mode) throws IOException {
        client.order(handle -> makeDirectory(handle, path, mode));
    }

    /** Hadoop's plain rename: into {@code target} if that is a directory; false as in HDFS. */
    boolean moveTo(String source, String target) throws IOException {
        return client.ask(handle -> moveTo(handle, source, target));
    }

    /** Exactly to {@code target}, replacing a file or an empty directory if asked to. */
    void rename(String source, String target, boolean overwrite) throws IOException {
        client.order(handle -> rename(handle, source, target, overwrite));
    }

    /** Deletes; false where nothing was there, and for the root, which stays. */
    boolean remove(String path, boolean recursive) throws IOException {
        return client.ask(handle -> remove(handle, path, recursive));
    }

    /** Sets the mode bits. */
    void setMode(String path, int mode) throws IOException {
        client.order(handle -> setMode(handle, path, mode));
    }

    /** Sets owner and group by name or number; {@code null} or empty leaves one of them. */
    void setOwner(String path, String user, String group) throws IOException {
        long userId = numberOrNone(user, false);
        long groupId = numberOrNone(group, true);
        client.order(handle -> setOwner(handle, path, userId, groupId));
    }

    private static long numberOrNone(String name, boolean isGroup) throws IOException {
        return name == null || name.isEmpty() ? -1 : number(name, isGroup);
    }

    /** The number of a user or group. */
    static long number(String name, boolean isGroup) throws IOException {
        long number = numberOf(name, isGroup);
        if (number < 0) {
            throw new IOException("while looking for the " + (isGroup ? "group " : "user ")
                    + name + ": this machine knows none of that name (name another, or a number)");
        }
        return number;
    }

    /** Sets times in milliseconds since 1970; what is negative stays. */
    void setTimes(String path, long modifiedMs, long accessedMs) throws IOException {
        client.order(handle -> setTimes(handle, path, modifiedMs, accessedMs));
    }

    /** Makes a symbolic link; the target is relative, or absolute below {@code tide:}. */
    void makeLink(String target, boolean targetIsTide, String link) throws IOException {
        client.order(handle -> makeLink(handle, target, targetIsTide, link));
    }

    /**
     * The target of a link: a path below {@code tide:}, relative or absolute, or one with the
     * scheme {@code file:}; {@code null} where it is not a link.
     */
    String linkTarget(String path) throws IOException {
        byte[] target = client.ask(handle -> linkTarget(handle, path));
        return target == null ? null : NameRecord.text(target, 0, target.length);
    }

    /** Shortens a file. */
    void truncate(String path, long length) throws IOException {
        client.order(handle -> truncate(handle, path, length));
    }

    /** Files, directories and bytes of a tree. */
    long[] sums(String path) throws IOException {
        return client.ask(handle -> sums(handle, path));
    }

    /** Bytes of the file system: in all, used, free for this user. */
    long[] totals(String path) throws IOException {
        return client.ask(handle -> totals(handle, path));
    }

    /** Throws unless this user may do what the bits say. */
    void access(String path, int bits) throws IOException {
        client.order(handle -> access(handle, path, bits));
    }

    /** The value of an extended attribute by its full name; {@code null} if there is none. */
    byte[] attribute(String path, String name) throws IOException {
        return client.ask(handle -> attribute(handle, path, name));
    }

    /** Full names of all extended attributes. */
    String[] attributes(String path) throws IOException {
        return client.ask(handle -> attributes(handle, path));
    }

    /** Sets an extended attribute, or removes it where the value is {@code null}. */
    void setAttribute(String path, String name, byte[] value, int how) throws IOException {
        client.order(handle -> setAttribute(handle, path, name, value, how));
    }

    /**
     * Where blocks of files are.
     *
     * @param ranges for each path the length of a block in bytes, the first block, their number
     * @param found gets for each block three places in the array that is returned, -1 where there
     *     is no host, and then 1 where the hosts have it in memory
     * @return names of hosts; none where nothing is known, and then nothing is found
     */
    String[] locate(String[] paths, long[] ranges, int[] found) throws IOException {
        return client.ask(handle -> locate(handle, paths, ranges, found));
    }

    /** Name of a user; the number where there is none. Asked once a user and process. */
    static String user(int number) {
        String known = USERS.get(number);
        return known != null ? known : USERS.computeIfAbsent(number, id -> nameOf(id, false));
    }

    /** Name of a group; the number where there is none. Asked once a group and process. */
    static String group(int number) {
        String known = GROUPS.get(number);
        return known != null ? known : GROUPS.computeIfAbsent(number, id -> nameOf(id, true));
    }

    static native byte[] listMore(long listing, int entriesMax) throws IOException;

    static native void listClose(long listing);

    private static native int status(long client, String path, boolean follow, byte[] record)
            throws IOException;

    private static native byte[] list(long client, String path, int entriesMax)
            throws IOException;

    private static native void makeDirectories(long client, String path, int mode)
            throws IOException;

    private static native void makeDirectory(long client, String path, int mode)
            throws IOException;

    private static native boolean moveTo(long client, String source, String target)
            throws IOException;

    private static native void rename(
            long client, String source, String target, boolean overwrite) throws IOException;

    private static native boolean remove(long client, String path, boolean recursive)
            throws IOException;

    private static native void setMode(long client, String path, int mode) throws IOException;

    private static native void setOwner(long client, String path, long user, long group)
            throws IOException;

    private static native void setTimes(long client, String path, long modified, long accessed)
            throws IOException;

    private static native void makeLink(
            long client, String target, boolean targetIsTide, String link) throws IOException;

    private static native byte[] linkTarget(long client, String path) throws IOException;

    private static native void truncate(long client, String path, long length)
            throws IOException;

    private static native long[] sums(long client, String path) throws IOException;

    private static native long[] totals(long client, String path) throws IOException;

    private static native void access(long client, String path, int bits) throws IOException;

    private static native byte[] attribute(long client, String path, String name)
            throws IOException;

    private static native String[] attributes(long client, String path) throws IOException;

    private static native void setAttribute(
            long client, String path, String name, byte[] value, int how) throws IOException;

    private static native String[] locate(
            long client, String[] paths, long[] ranges, int[] found) throws IOException;

    private static native String nameOf(int number, boolean isGroup);

    private static native long numberOf(String name, boolean isGroup);
}
