/*
 * Turns an error of the native library into the exception that callers of Hadoop expect. Called
 * from the native library alone; the errors themselves are made there.
 */
package io.tidepool.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.fs.ClusterStorageCapacityExceededException;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.security.AccessControlException;

final class NativeFailure {

    // Error numbers of Linux, the same on every architecture that the library is built for.
    private static final int EPERM = 1;
    private static final int ENOENT = 2;
    private static final int EACCES = 13;
    private static final int EEXIST = 17;
    private static final int ENOTDIR = 20;
    private static final int EISDIR = 21;
    private static final int EROFS = 30;
    private static final int ENOTEMPTY = 39;
    private static final int EDQUOT = 122;

    private NativeFailure() {}

    /**
     * The exception for an error.
     *
     * @param kind name of the kind of error, as the product has it
     * @param errno error number of Linux that stands for it
     * @param message operation, cause and remedy in one line
     * @param path Hadoop's path, or empty where there is none
     */
    static Throwable exception(String kind, int errno, String message, String path) {
        String line = path.isEmpty() ? message : path + ": " + message;
        switch (errno) {
            case ENOENT:
            case EISDIR:
                return new FileNotFoundException(line);
            case EPERM:
            case EACCES:
            case EROFS:
                return new AccessControlException(line);
            case EEXIST:
                return new FileAlreadyExistsException(line);
            case ENOTDIR:
                return new ParentNotDirectoryException(line);
            case ENOTEMPTY:
                return withMessage(new PathIsNotEmptyDirectoryException(path), message);
            case EDQUOT:
                return new ClusterStorageCapacityExceededException(line);
            default:
                return path.isEmpty() ? new IOException(line) : new PathIOException(path, message);
        }
    }

    private static IOException withMessage(IOException error, String message) {
        error.initCause(new IOException(message));
        return error;
    }
}
