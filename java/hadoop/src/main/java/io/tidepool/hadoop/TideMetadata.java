/*
 * The part of the file system of tide:// that is about what names are: their status, permissions,
 * owners, times, attributes and access control lists. Opens, lists and moves nothing.
 */
package io.tidepool.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclStatus;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;

abstract class TideMetadata extends FileSystem {

    /** The root of all names. */
    static final URI ROOT = URI.create(TideFileSystem.SCHEME + ":///");

    final OperationStatistics operations = new OperationStatistics();
    NativeClient client;
    NativeNames names;
    long splitBytes;
    Path workingDirectory;

    /** The path as the native library takes it. */
    final String name(Path path) {
        checkPath(path);
        return absolute(path).toUri().getPath();
    }

    final Path absolute(Path path) {
        return path.isAbsolute() ? path : new Path(workingDirectory, path);
    }

    final Path qualified(Path path) {
        checkPath(path);
        return path.makeQualified(ROOT, workingDirectory);
    }

    private static FileNotFoundException missing(Path path) {
        return new FileNotFoundException(path + ": while looking at it: nothing is there (check "
                + "the path; names are those of the parallel file system)");
    }

    @Override
    public TideFileStatus getFileStatus(Path path) throws IOException {
        TideFileStatus status = status(path, true);
        if (status == null) {
            throw missing(path);
        }
        return status;
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
        TideFileStatus status = status(path, false);
        if (status == null) {
            throw missing(path);
        }
        return status;
    }

    final TideFileStatus statusOrNull(Path path) throws IOException {
        return status(path, true);
    }

    final TideFileStatus status(Path path, boolean follow) throws IOException {
        operations.count(OperationStatistics.STATUS);
        statistics.incrementReadOps(1);
        byte[] record = new byte[NameRecord.BYTES];
        if (!names.status(name(path), follow, record)) {
            return null;
        }
        return TideFileStatus.of(new NameRecord(record, 0), splitBytes, qualified(path), names);
    }

    @Override
    public void setWorkingDirectory(Path directory) {
        checkPath(directory);
        workingDirectory = absolute(directory);
    }

    @Override
    public Path getWorkingDirectory() {
        return workingDirectory;
    }

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
        statistics.incrementWriteOps(1);
        names.setMode(name(path), permission.toShort());
    }

    @Override
    public void setOwner(Path path, String user, String group) throws IOException {
        statistics.incrementWriteOps(1);
        names.setOwner(name(path), user, group);
    }

    @Override
    public void setTimes(Path path, long modifiedMs, long accessedMs) throws IOException {
        statistics.incrementWriteOps(1);
        names.setTimes(name(path), modifiedMs, accessedMs);
    }

    @Override
    public void access(Path path, FsAction action) throws IOException {
        statistics.incrementReadOps(1);
        int bits = (action.implies(FsAction.READ) ? NativeNames.READ : 0)
                | (action.implies(FsAction.WRITE) ? NativeNames.WRITE : 0)
                | (action.implies(FsAction.EXECUTE) ? NativeNames.EXECUTE : 0);
        names.access(name(path), bits);
    }

    @Override
    public void setXAttr(Path path, String name, byte[] value, EnumSet<XAttrSetFlag> flags)
            throws IOException {
        statistics.incrementWriteOps(1);
        boolean creates = flags.contains(XAttrSetFlag.CREATE);
        boolean replaces = flags.contains(XAttrSetFlag.REPLACE);
        if (!creates && !replaces) {
            throw new org.apache.hadoop.HadoopIllegalArgumentException(
                    "give CREATE, REPLACE or both for the attribute " + name);
        }
        int how = creates && replaces ? NativeNames.SET
                : creates ? NativeNames.CREATE : NativeNames.REPLACE;
        names.setAttribute(name(path), name, value == null ? new byte[0] : value, how);
    }

    @Override
    public byte[] getXAttr(Path path, String name) throws IOException {
        statistics.incrementReadOps(1);
        byte[] value = names.attribute(name(path), name);
        if (value == null) {
            throw new PathIOException(path.toString(), "while reading the attribute " + name
                    + ": it has none of that name (listXAttrs names those it has)");
        }
        return value;
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path path) throws IOException {
        return getXAttrs(path, listXAttrs(path));
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path path, List<String> wanted) throws IOException {
        Map<String, byte[]> found = new HashMap<>();
        for (String name : wanted) {
            found.put(name, getXAttr(path, name));
        }
        return found;
    }

    /** Those of users; access control lists and marks of the kernel have calls of their own. */
    @Override
    public List<String> listXAttrs(Path path) throws IOException {
        statistics.incrementReadOps(1);
        return Arrays.stream(names.attributes(name(path)))
                .filter(name -> name.startsWith("user.") || name.startsWith("trusted."))
                .toList();
    }

    @Override
    public void removeXAttr(Path path, String name) throws IOException {
        statistics.incrementWriteOps(1);
        names.setAttribute(name(path), name, null, NativeNames.SET);
    }

    /** A change of an access control list. */
    private interface ListChange {
        void change(AccessList list) throws IOException;
    }

    private void changeList(Path path, ListChange change) throws IOException {
        statistics.incrementWriteOps(1);
        TideFileStatus status = getFileStatus(path);
        AccessList list = AccessList.of(names, status);
        change.change(list);
        list.write(status);
    }

    @Override
    public void modifyAclEntries(Path path, List<AclEntry> entries) throws IOException {
        changeList(path, list -> list.modify(entries));
    }

    @Override
    public void removeAclEntries(Path path, List<AclEntry> entries) throws IOException {
        changeList(path, list -> list.remove(entries));
    }

    @Override
    public void removeDefaultAcl(Path path) throws IOException {
        changeList(path, AccessList::removeDefault);
    }

    @Override
    public void removeAcl(Path path) throws IOException {
        changeList(path, AccessList::removeAll);
    }

    @Override
    public void setAcl(Path path, List<AclEntry> entries) throws IOException {
        changeList(path, list -> list.set(entries));
    }

    @Override
    public AclStatus getAclStatus(Path path) throws IOException {
        TideFileStatus status = getFileStatus(path);
        return AccessList.of(names, status).status(status);
    }
}
