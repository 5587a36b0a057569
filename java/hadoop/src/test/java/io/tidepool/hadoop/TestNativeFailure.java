/*
 * Which exception each error becomes: the table that callers of Hadoop rely on. Every message
 * has the path, what was done, and what the caller can do about it.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.hadoop.fs.ClusterStorageCapacityExceededException;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.security.AccessControlException;
import org.junit.Test;

/** Errors as exceptions. */
public class TestNativeFailure {

    /** A call that fails. */
    private interface Call {
        void run() throws IOException;
    }

    @Test
    public void eachErrorIsTheExceptionThatCallersKnow() {
        Map<Integer, Class<?>> table = new LinkedHashMap<>();
        table.put(1, AccessControlException.class);
        table.put(2, FileNotFoundException.class);
        table.put(5, PathIOException.class);
        table.put(13, AccessControlException.class);
        table.put(17, FileAlreadyExistsException.class);
        table.put(18, PathIOException.class);
        table.put(20, ParentNotDirectoryException.class);
        table.put(21, FileNotFoundException.class);
        table.put(28, PathIOException.class);
        table.put(30, AccessControlException.class);
        table.put(39, PathIsNotEmptyDirectoryException.class);
        table.put(95, PathIOException.class);
        table.put(116, PathIOException.class);
        table.put(122, ClusterStorageCapacityExceededException.class);
        table.forEach((errno, expected) -> {
            String line = "while testing: why (cure)";
            Throwable made = NativeFailure.exception("Pfs", errno, line, "/a");
            assertEquals("errno " + errno, expected, made.getClass());
            String message = made.getMessage() + (made.getCause() == null ? ""
                    : made.getCause().getMessage());
            assertTrue(message, message.contains("/a") && message.contains("(cure)"));
        });
    }

    @Test
    public void callsThatFailSayWhereAndWhatToDo() throws IOException {
        FileSystem system = ContractNode.fileSystem();
        Path base = new Path("/failures");
        system.mkdirs(new Path(base, "directory/inner"));
        system.create(new Path(base, "file")).close();
        Path missing = new Path(base, "missing");
        Path file = new Path(base, "file");
        check(FileNotFoundException.class, missing, () -> system.open(missing));
        check(FileNotFoundException.class, missing, () -> system.getFileStatus(missing));
        check(FileNotFoundException.class, missing, () -> system.listStatus(missing));
        check(FileNotFoundException.class, missing, () -> system.append(missing));
        check(FileNotFoundException.class, missing, () -> system.setTimes(missing, 1, 1));
        check(FileNotFoundException.class, missing, () -> system.getContentSummary(missing));
        check(FileAlreadyExistsException.class, file, () -> system.create(file, false));
        check(FileAlreadyExistsException.class, file, () -> system.mkdirs(file));
        Path under = new Path(file, "under");
        check(ParentNotDirectoryException.class, under, () -> system.mkdirs(under));
        Path directory = new Path(base, "directory");
        check(PathIsNotEmptyDirectoryException.class, directory,
                () -> system.delete(directory, false));
        system.delete(base, true);
    }

    private static void check(Class<?> expected, Path path, Call call) {
        try {
            call.run();
        } catch (IOException error) {
            assertEquals(error.toString(), expected, error.getClass());
            String message = error.getMessage() + (error.getCause() == null ? ""
                    : error.getCause().getMessage());
            assertTrue(message, message.contains(path.getName()) && message.contains("("));
            return;
        }
        throw new AssertionError(path + ": " + expected + " is missing");
    }
}
