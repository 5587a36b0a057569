/*
 * The same file system for FileContext, which Hadoop finds by fs.AbstractFileSystem.tide.impl. What
 * Hadoop's adapter leaves out or does in several steps goes straight to the file system here: a
 * rename that replaces is atomic, and lists come in pieces.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclStatus;
import org.apache.hadoop.fs.permission.FsAction;

/** {@code tide://} for FileContext. */
public final class Tide extends DelegateToFileSystem {

    private final TideFileSystem system;

    /**
     * Called by Hadoop.
     *
     * @param name of the file system; only the scheme counts
     * @param configuration with {@code fs.tide.*}
     */
    public Tide(URI name, Configuration configuration) throws IOException, URISyntaxException {
        super(name, TideFileSystem.sharing(), configuration, TideFileSystem.SCHEME, false);
        system = (TideFileSystem) fsImpl;
    }

    @Override
    public int getUriDefaultPort() {
        return -1;
    }

    @Override
    public void renameInternal(Path source, Path target, boolean overwrite) throws IOException {
        checkPath(source);
        checkPath(target);
        system.rename(source, target,
                overwrite ? Options.Rename.OVERWRITE : Options.Rename.NONE);
    }

    @Override
    public RemoteIterator<FileStatus> listStatusIterator(Path path) throws IOException {
        return system.listStatusIterator(path);
    }

    @Override
    public RemoteIterator<LocatedFileStatus> listLocatedStatus(Path path) throws IOException {
        return system.listLocatedStatus(path);
    }

    @Override
    public void access(Path path, FsAction action) throws IOException {
        system.access(path, action);
    }

    /** True already: every call asks the parallel file system. */
    @Override
    public void msync() {}

    @Override
    public void modifyAclEntries(Path path, List<AclEntry> entries) throws IOException {
        system.modifyAclEntries(path, entries);
    }

    @Override
    public void removeAclEntries(Path path, List<AclEntry> entries) throws IOException {
        system.removeAclEntries(path, entries);
    }

    @Override
    public void removeDefaultAcl(Path path) throws IOException {
        system.removeDefaultAcl(path);
    }

    @Override
    public void removeAcl(Path path) throws IOException {
        system.removeAcl(path);
    }

    @Override
    public void setAcl(Path path, List<AclEntry> entries) throws IOException {
        system.setAcl(path, entries);
    }

    @Override
    public AclStatus getAclStatus(Path path) throws IOException {
        return system.getAclStatus(path);
    }

    @Override
    public void setXAttr(Path path, String name, byte[] value, EnumSet<XAttrSetFlag> flags)
            throws IOException {
        system.setXAttr(path, name, value, flags);
    }

    @Override
    public byte[] getXAttr(Path path, String name) throws IOException {
        return system.getXAttr(path, name);
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path path) throws IOException {
        return system.getXAttrs(path);
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path path, List<String> names) throws IOException {
        return system.getXAttrs(path, names);
    }

    @Override
    public List<String> listXAttrs(Path path) throws IOException {
        return system.listXAttrs(path);
    }

    @Override
    public void removeXAttr(Path path, String name) throws IOException {
        system.removeXAttr(path, name);
    }
}
