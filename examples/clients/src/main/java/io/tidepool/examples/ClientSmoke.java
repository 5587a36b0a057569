package io.tidepool.examples;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Collection;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.function.IntFunction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.VersionInfo;

/**
 * Uses a file system by what every promised version of Hadoop has, and by what newer ones have
 * where they have it: {@code ClientSmoke URI}. Prints what was done; ends with an error where
 * anything is not as it should be.
 */
public final class ClientSmoke {

    private static final byte[] BYTES = new byte[3 << 20];

    private final FileSystem files;
    private final Path base;

    private ClientSmoke(FileSystem files, Path base) {
        this.files = files;
        this.base = base;
    }

    public static void main(String[] arguments) throws Exception {
        new Random(1).nextBytes(BYTES);
        Configuration configuration = new Configuration();
        URI root = URI.create(arguments[0]);
        try (FileSystem files = FileSystem.newInstance(root, configuration)) {
            ClientSmoke smoke = new ClientSmoke(files, new Path(root.getPath(), "smoke"));
            files.delete(smoke.base, true);
            smoke.writeAndRead();
            smoke.openFile();
            smoke.names();
            smoke.statistics();
            String vectored = smoke.vectored() ? "vectored" : "no vectored";
            String bulk = smoke.bulkDelete() ? "bulk delete" : "no bulk delete";
            smoke.fileContext(FileContext.getFileContext(root, configuration));
            check(files.delete(smoke.base, true), "the directory goes");
            check(!files.exists(smoke.base), "it is gone");
            System.out.println("DONE " + VersionInfo.getVersion() + ", " + vectored + ", " + bulk);
        }
    }

    private static void check(boolean isRight, String what) {
        if (!isRight) {
            throw new IllegalStateException("wrong: " + what);
        }
    }

    private void writeAndRead() throws IOException {
        Path file = new Path(base, "file");
        try (FSDataOutputStream out = files.create(file, true)) {
            out.write(BYTES, 0, 1 << 20);
            out.hflush();
            out.hsync();
            out.write(BYTES, 1 << 20, 1 << 20);
        }
        try (FSDataOutputStream out = files.append(file)) {
            out.write(BYTES, 2 << 20, 1 << 20);
        }
        byte[] found = new byte[BYTES.length];
        try (FSDataInputStream in = files.open(file)) {
            in.readFully(0, found);
            check(Arrays.equals(found, BYTES), "bytes at a position");
            in.seek(1 << 20);
            check(in.read() == (BYTES[1 << 20] & 0xff), "a byte after a seek");
            ByteBuffer direct = ByteBuffer.allocateDirect(4096);
            check(in.read(direct) > 0, "into a direct buffer");
            check(direct.get(0) == BYTES[(1 << 20) + 1], "its first byte");
            in.unbuffer();
            check(in.toString() != null, "a text of a stream");
        }
    }

    private void openFile() throws Exception {
        Path file = new Path(base, "file");
        try (FSDataInputStream in = files.openFile(file)
                .opt("fs.option.openfile.read.policy", "sequential").build().get()) {
            check(in.read() == (BYTES[0] & 0xff), "the first byte of openFile");
        }
        try (FSDataOutputStream out = files.createFile(new Path(base, "built")).build()) {
            out.write(7);
        }
    }

    private void names() throws IOException {
        TreeSet<String> names = new TreeSet<>();
        for (FileStatus status : files.listStatus(base)) {
            names.add(status.getPath().getName());
        }
        check(names.equals(new TreeSet<>(List.of("file", "built"))), "a list: " + names);
        RemoteIterator<? extends FileStatus> all = files.listFiles(base, true);
        int count = 0;
        while (all.hasNext()) {
            check(all.next().isFile(), "files alone");
            count++;
        }
        check(count == 2, "a list of " + count);
        check(files.getFileStatus(new Path(base, "file")).getLen() == BYTES.length, "a length");
        check(files.getContentSummary(base).getFileCount() == 2, "a summary");
        check(files.globStatus(new Path(base, "b*")).length == 1, "a pattern");
        check(files.getFileChecksum(new Path(base, "file")) != null, "a checksum");
        check(files.getFileBlockLocations(new Path(base, "file"), 0, 1).length == 1, "a block");
        check(files.rename(new Path(base, "built"), new Path(base, "moved")), "a rename");
        check(files.delete(new Path(base, "moved"), false), "a delete");
        try {
            files.open(new Path(base, "moved"));
            check(false, "a deleted file opens");
        } catch (FileNotFoundException right) {
            check(right.getMessage().contains("moved"), "the path in " + right);
        }
        check(files.mkdirs(new Path(base, "a/b/c"), new FsPermission("750")), "directories");
        files.setPermission(new Path(base, "a"), new FsPermission("700"));
        check(files.getFileStatus(new Path(base, "a")).getPermission().toShort() == 0700, "a mode");
    }

    private void statistics() {
        check(files.toString().contains("op_open"), "counters in " + files);
        check(FileSystem.getStatistics("tide", files.getClass()).getBytesRead() > 0, "bytes read");
    }

    /** By reflection: Hadoop has it since 3.3.5. */
    private boolean vectored() throws Exception {
        Class<?> range;
        try {
            range = Class.forName("org.apache.hadoop.fs.FileRange");
        } catch (ClassNotFoundException older) {
            return false;
        }
        Method make = range.getMethod("createFileRange", long.class, int.class);
        List<Object> ranges = List.of(make.invoke(null, 10L, 1000), make.invoke(null, 2L << 20, 5));
        IntFunction<ByteBuffer> allocate = ByteBuffer::allocate;
        try (FSDataInputStream in = files.open(new Path(base, "file"))) {
            FSDataInputStream.class.getMethod("readVectored", List.class, IntFunction.class)
                    .invoke(in, ranges, allocate);
            Future<?> data = (Future<?>) range.getMethod("getData").invoke(ranges.get(0));
            ByteBuffer buffer = (ByteBuffer) data.get();
            check(buffer.remaining() == 1000 && buffer.get(buffer.position()) == BYTES[10],
                    "a range");
        }
        return true;
    }

    /** By reflection: Hadoop has it since 3.4.1. */
    private boolean bulkDelete() throws Exception {
        Method create;
        try {
            create = FileSystem.class.getMethod("createBulkDelete", Path.class);
        } catch (NoSuchMethodException older) {
            return false;
        }
        Path victim = new Path(base, "victim");
        files.create(victim, true).close();
        Path whole = files.makeQualified(base);
        try (AutoCloseable bulk = (AutoCloseable) create.invoke(files, whole)) {
            Class<?> type = Class.forName("org.apache.hadoop.fs.BulkDelete");
            Object failed = type.getMethod("bulkDelete", Collection.class)
                    .invoke(bulk, List.of(files.makeQualified(victim)));
            check(((Collection<?>) failed).isEmpty(), "a bulk delete without failures");
        } catch (InvocationTargetException error) {
            throw new IOException("a bulk delete", error.getCause());
        }
        check(!files.exists(victim), "a bulk delete");
        return true;
    }

    private void fileContext(FileContext context) throws IOException {
        Path made = new Path(base, "made");
        try (FSDataOutputStream out = context.create(made,
                EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE), Options.CreateOpts
                        .createParent())) {
            out.write(BYTES, 0, 10);
        }
        Path moved = new Path(base, "moved");
        context.rename(made, moved, Options.Rename.OVERWRITE);
        try (FSDataInputStream in = context.open(moved)) {
            check(in.read() == (BYTES[0] & 0xff), "a byte through FileContext");
        }
        check(context.util().listStatus(base).length > 0, "a list through FileContext");
        check(context.delete(moved, false), "a delete through FileContext");
    }
}
