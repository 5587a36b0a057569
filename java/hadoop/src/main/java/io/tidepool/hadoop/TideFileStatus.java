/*
 * The status of a name of tide://: Hadoop's FileStatus, and what identifies a version of the file.
 * Whether there is an access control list is asked for when the caller wants to know it.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.concurrent.atomic.AtomicReferenceArray;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FSLinkResolver;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/** The status of a file or directory of {@code tide://}. */
public final class TideFileStatus extends FileStatus implements EtagSource {

    private static final long serialVersionUID = 1;
    private static final int PERMISSION_BITS = 01777;

    /** Permissions have no state, and lists of many files have few different ones. */
    private static final AtomicReferenceArray<FsPermission> PERMISSIONS =
            new AtomicReferenceArray<>(PERMISSION_BITS + 1);

    private final long device;
    private final long inode;
    private final long modifiedNs;
    private final transient NativeNames names;
    private Boolean hasList;

    private TideFileStatus(
            NameRecord record, long blockBytes, Path target, Path path, NativeNames names)
            throws IOException {
        super(record.length(), record.isDirectory(), record.isDirectory() ? 0 : 1,
                record.isDirectory() ? 0 : blockBytes, record.modifiedMs(), record.accessedMs(),
                permission(record.mode()), NativeNames.user(record.user()),
                NativeNames.group(record.group()), target, path);
        this.device = record.device();
        this.inode = record.inode();
        this.modifiedNs = record.modifiedNs();
        this.names = names;
    }

    /** The status of a record, of a name at this path. */
    static TideFileStatus of(NameRecord record, long blockBytes, Path path, NativeNames names)
            throws IOException {
        Path target = null;
        if (record.isLink()) {
            String text = names.linkTarget(path.toUri().getPath());
            target = text == null ? null : FSLinkResolver.qualifySymlinkTarget(
                    path.toUri(), path, new Path(text));
        }
        return new TideFileStatus(record, blockBytes, target, path, names);
    }

    private static FsPermission permission(int mode) {
        int bits = mode & PERMISSION_BITS;
        FsPermission known = PERMISSIONS.get(bits);
        if (known == null) {
            known = new FsPermission((short) bits);
            PERMISSIONS.set(bits, known);
        }
        return known;
    }

    /** Number of the file in its file system. */
    long inode() {
        return inode;
    }

    /** Number of the file system. */
    long device() {
        return device;
    }

    /** Time of the last change of content, in nanoseconds since 1970. */
    long modifiedNs() {
        return modifiedNs;
    }

    /** Changes with every change of content that the parallel file system stamps. */
    @Override
    public String getEtag() {
        if (isDirectory()) {
            return null;
        }
        return Long.toHexString(device) + '-' + Long.toHexString(inode) + '-'
                + Long.toHexString(getLen()) + '-' + Long.toHexString(modifiedNs);
    }

    @Override
    public boolean hasAcl() {
        if (names == null) {
            return super.hasAcl();
        }
        if (hasList == null) {
            try {
                hasList = AccessList.exists(names, getPath().toUri().getPath());
            } catch (IOException unknown) {
                // The name is gone, a link in a circle, or the file system is closed. A caller that
                // only prints a status asks this too.
                return false;
            }
        }
        return hasList;
    }

    @Override
    public boolean equals(Object other) {
        return super.equals(other);
    }

    @Override
    public int hashCode() {
        return super.hashCode();
    }
}
