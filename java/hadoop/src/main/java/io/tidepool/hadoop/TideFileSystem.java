/*
 * Hadoop's file system of tide://: tide:///a/b is a/b in the directory of the parallel file system.
 * Names and metadata are those of the parallel file system, as the user of this process; bytes go
 * through the memory of the node where one answers. Decides what Hadoop's calls mean, and leaves
 * the doing to NativeNames and NativeFile. Has no second name space and caches no metadata.
 */
package io.tidepool.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.ContentSummary;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.MultipartUploaderBuilder;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.StorageStatistics;
import org.apache.hadoop.fs.impl.AbstractFSBuilderImpl;
import org.apache.hadoop.fs.impl.FileSystemMultipartUploaderBuilder;
import org.apache.hadoop.fs.impl.OpenFileParameters;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.LambdaUtils;
import org.apache.hadoop.util.Progressable;

/** The file system of {@code tide://}. */
public class TideFileSystem extends TideMetadata implements IOStatisticsSource {

    /** The scheme. */
    public static final String SCHEME = "tide";

    /** What this class and its options bring to every configuration of the process. */
    private static final String RESOURCE = "tide-default.xml";

    /** Entries of a directory that one native call gives: all of one of usual size. */
    private static final int LIST_ENTRIES_MAX = 100_000;

    /** Entries at a time where the caller takes them one by one. */
    private static final int PIECE_ENTRIES_MAX = 4_000;

    static {
        Configuration.addDefaultResource(RESOURCE);
    }

    private Locality locality;
    /** Where home directories are; {@code null} is where Hadoop has them. */
    private String homePrefix;
    private final boolean isSharing;

    /** Called by Hadoop. */
    public TideFileSystem() {
        this(false);
    }

    private TideFileSystem(boolean isSharing) {
        this.isSharing = isSharing;
    }

    /**
     * Has all configurations of the process name this class for its scheme: what loading it does.
     * For programs that added the jar after Hadoop listed the file systems of the class path.
     */
    public static void makeKnown() {}

    /** One of many file systems with one client, which is never closed. */
    static TideFileSystem sharing() {
        return new TideFileSystem(true);
    }

    @Override
    public String getScheme() {
        return SCHEME;
    }

    @Override
    public URI getUri() {
        return ROOT;
    }

    @Override
    public void initialize(URI name, Configuration configuration) throws IOException {
        if (name.getAuthority() != null) {
            throw new IOException("while opening " + name + ": a tide name has no host (write "
                    + "three slashes: tide://" + "/directory/file)");
        }
        super.initialize(ROOT, configuration);
        setConf(configuration);
        OtherUsers.check(configuration);
        Map<String, String> options = new HashMap<>();
        configuration.getPropsWithPrefix(TideOptions.PREFIX)
                .forEach((key, value) -> options.put(TideOptions.PREFIX + key, value));
        client = isSharing
                ? NativeClient.shared(UserGroupInformation.getCurrentUser(), options)
                : NativeClient.connect(options, OtherUsers.isAnother());
        try {
            client.pfsRoot();
            splitBytes = client.sizes(null).splitBytes();
        } catch (IOException | RuntimeException error) {
            closeClient();
            throw error;
        }
        names = new NativeNames(client);
        locality = new Locality(configuration, names);
        homePrefix = configuration.getTrimmed(TideOptions.HOME_PREFIX);
        workingDirectory = getHomeDirectory();
    }

    @Override
    public Path getHomeDirectory() {
        Path usual = super.getHomeDirectory();
        return homePrefix == null ? usual : qualified(new Path(homePrefix, usual.getName()));
    }

    /** The client, for streams. */
    final NativeClient client() {
        return client;
    }

    private void checkOpen() throws IOException {
        if (client == null || client.isClosed()) {
            throw new IOException("while using tide://" + "/: Filesystem closed");
        }
    }

    // Opening and creating.

    @Override
    public FSDataInputStream open(Path path, int bufferBytes) throws IOException {
        return open(path, null, null);
    }

    private FSDataInputStream open(Path path, Map<String, String> options, ReadPlan reads)
            throws IOException {
        statistics.incrementReadOps(1);
        return operations.timed(OperationStatistics.OPEN, () -> Streams.open(
                client, name(path), options, reads, statistics, operations));
    }

    @Override
    protected CompletableFuture<FSDataInputStream> openFileWithOptions(
            Path path, OpenFileParameters parameters) throws IOException {
        FileStatus status = parameters.getStatus();
        if (status != null && !status.getPath().getName().equals(path.getName())) {
            throw new IllegalArgumentException(
                    path + ": the status is of another file, " + status.getPath());
        }
        return openFile(parameters, path);
    }

    @Override
    protected CompletableFuture<FSDataInputStream> openFileWithOptions(
            PathHandle handle, OpenFileParameters parameters) throws IOException {
        return openFile(parameters, handle);
    }

    /** Opens what is named by a path or a handle, with what is known of the open. */
    private CompletableFuture<FSDataInputStream> openFile(
            OpenFileParameters parameters, Object named) throws IOException {
        AbstractFSBuilderImpl.rejectUnknownMandatoryKeys(
                parameters.getMandatoryKeys(), ReadPlan.KNOWN, "for " + named);
        Map<String, String> options = Streams.options(parameters.getOptions());
        ReadPlan reads = ReadPlan.of(parameters.getOptions());
        return LambdaUtils.eval(new CompletableFuture<>(), () -> {
            Path path = named instanceof Path given ? given : resolved((PathHandle) named);
            return open(path, options, reads);
        });
    }

    @Override
    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite,
            int bufferBytes, short replication, long blockBytes, Progressable progress)
            throws IOException {
        FsPermission masked = masked(permission, FsPermission.getFileDefault());
        int flags = overwrite ? NativeFile.CREATE | NativeFile.TRUNCATE : NativeFile.CREATE_NEW;
        return create(path, flags, masked, true, null);
    }

    @Override
    public FSDataOutputStream create(Path path, FsPermission permission,
            EnumSet<CreateFlag> flags, int bufferBytes, short replication, long blockBytes,
            Progressable progress, Options.ChecksumOpt checksum) throws IOException {
        return create(path, flags, permission, true, null);
    }

    @Override
    public FSDataOutputStream createNonRecursive(Path path, FsPermission permission,
            EnumSet<CreateFlag> flags, int bufferBytes, short replication, long blockBytes,
            Progressable progress) throws IOException {
        return create(path, flags, permission, false, null);
    }

    /** With a permission that is final already; how FileContext creates. */
    @Override
    @SuppressWarnings("deprecation")
    protected FSDataOutputStream primitiveCreate(Path path, FsPermission permission,
            EnumSet<CreateFlag> flags, int bufferBytes, short replication, long blockBytes,
            Progressable progress, Options.ChecksumOpt checksum) throws IOException {
        return create(path, OpenFlags.of(path, flags), permission, true, null);
    }

    @Override
    @SuppressWarnings("rawtypes")
    public FSDataOutputStreamBuilder createFile(Path path) {
        return new CreateBuilder(this, path).create().overwrite(true);
    }

    @Override
    @SuppressWarnings("rawtypes")
    public FSDataOutputStreamBuilder appendFile(Path path) {
        return new CreateBuilder(this, path).append();
    }

    /** With options for this file alone. */
    FSDataOutputStream create(Path path, EnumSet<CreateFlag> flags, FsPermission permission,
            boolean parents, Map<String, String> options) throws IOException {
        FsPermission masked = masked(permission, FsPermission.getFileDefault());
        return create(path, OpenFlags.of(path, flags), masked, parents, options);
    }

    private FSDataOutputStream create(Path path, int flags, FsPermission permission,
            boolean parents, Map<String, String> options) throws IOException {
        statistics.incrementWriteOps(1);
        return operations.timed(OperationStatistics.CREATE,
                () -> createWithParents(path, flags, permission, parents, options));
    }

    private FSDataOutputStream createWithParents(Path path, int flags, FsPermission permission,
            boolean parents, Map<String, String> options) throws IOException {
        String name = name(path);
        try {
            return createThere(name, flags, permission, options);
        } catch (ParentNotDirectoryException error) {
            throw error;
        } catch (FileNotFoundException error) {
            FileStatus status = statusOrNull(path);
            if (status != null && status.isDirectory()) {
                throw new FileAlreadyExistsException(path + ": while creating it: it is a "
                        + "directory (choose another name)");
            }
            Path parent = qualified(path).getParent();
            if (!parents || parent == null || statusOrNull(parent) != null) {
                throw error;
            }
            makeParent(parent, error);
            return createThere(name, flags, permission, options);
        }
    }

    private void makeParent(Path parent, FileNotFoundException why) throws IOException {
        try {
            mkdirs(parent);
        } catch (FileAlreadyExistsException link) {
            // A symbolic link to nothing.
            throw why;
        }
    }

    private FSDataOutputStream createThere(String name, int flags, FsPermission permission,
            Map<String, String> options) throws IOException {
        return Streams.create(
                client, name, flags, permission.toShort(), options, statistics, operations);
    }

    @Override
    public FSDataOutputStream append(Path path, int bufferBytes, Progressable progress)
            throws IOException {
        statistics.incrementWriteOps(1);
        return operations.timed(OperationStatistics.APPEND, () -> Streams.create(
                client, name(path), NativeFile.APPEND, 0, null, statistics, operations));
    }

    @Override
    public boolean truncate(Path path, long length) throws IOException {
        statistics.incrementWriteOps(1);
        if (length < 0) {
            throw new IllegalArgumentException(path + ": a file has no negative length");
        }
        return operations.timed(OperationStatistics.TRUNCATE, () -> {
            names.truncate(name(path), length);
            return true;
        });
    }

    /** Refused, and all the more of nothing, as programs ask for it. See the guide. */
    @Override
    public void concat(Path target, Path[] sources) {
        throw new UnsupportedOperationException("tide:// does not join files, because what other "
                + "programs write to them meanwhile would be lost (write a new file that has the "
                + "bytes of all of them; use distcp without -blocksperchunk)");
    }

    /** What a mode becomes by the mask of the configuration. */
    private FsPermission masked(FsPermission permission, FsPermission byDefault) {
        FsPermission given = permission == null ? byDefault : permission;
        return given.applyUMask(FsPermission.getUMask(getConf()));
    }

    // Names.

    @Override
    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        statistics.incrementWriteOps(1);
        FsPermission masked = masked(permission, FsPermission.getDirDefault());
        return operations.timed(OperationStatistics.MKDIRS, () -> {
            names.makeDirectories(name(path), masked.toShort());
            return true;
        });
    }

    /** With a permission that is final already; how FileContext makes directories. */
    @Override
    @SuppressWarnings("deprecation")
    protected boolean primitiveMkdir(Path path, FsPermission permission) throws IOException {
        names.makeDirectories(name(path), permission.toShort());
        return true;
    }

    @Override
    @SuppressWarnings("deprecation")
    protected void primitiveMkdir(Path path, FsPermission permission, boolean createParent)
            throws IOException {
        if (createParent) {
            primitiveMkdir(path, permission);
            return;
        }
        TideFileStatus status = statusOrNull(path);
        if (status != null && status.isDirectory()) {
            return;
        }
        names.makeDirectory(name(path), permission.toShort());
    }

    @Override
    public boolean rename(Path source, Path target) throws IOException {
        statistics.incrementWriteOps(1);
        return operations.timed(OperationStatistics.RENAME,
                () -> names.moveTo(name(source), name(target)));
    }

    @Override
    @SuppressWarnings("deprecation")
    protected void rename(Path source, Path target, Options.Rename... options)
            throws IOException {
        statistics.incrementWriteOps(1);
        boolean overwrite = Arrays.asList(options).contains(Options.Rename.OVERWRITE);
        operations.timed(OperationStatistics.RENAME, () -> {
            names.rename(name(source), name(target), overwrite);
            return null;
        });
    }

    @Override
    public boolean delete(Path path, boolean recursive) throws IOException {
        statistics.incrementWriteOps(1);
        return operations.timed(OperationStatistics.DELETE,
                () -> names.remove(name(path), recursive));
    }

    @Override
    public void createSymlink(Path target, Path link, boolean createParent) throws IOException {
        statistics.incrementWriteOps(1);
        String scheme = target.toUri().getScheme();
        boolean elsewhere = scheme != null && !SCHEME.equals(scheme);
        if (elsewhere || target.toUri().getAuthority() != null) {
            throw new PathIOException(link.toString(),
                    "a link of tide:// leads nowhere else (name a target of tide://)");
        }
        if (createParent && link.getParent() != null) {
            mkdirs(link.getParent());
        }
        names.makeLink(target.toUri().getPath(), target.isAbsolute(), name(link));
    }

    /** Without a scheme where it is below {@code tide:///}, as FileContext wants it. */
    @Override
    public Path getLinkTarget(Path path) throws IOException {
        String target = names.linkTarget(name(path));
        if (target == null) {
            throw new IOException("Path " + qualified(path) + " is not a symbolic link");
        }
        return new Path(target);
    }

    @Override
    protected Path resolveLink(Path path) throws IOException {
        return getLinkTarget(path);
    }

    @Override
    public boolean supportsSymlinks() {
        return true;
    }

    // Status and lists.

    @Override
    public boolean exists(Path path) throws IOException {
        return statusOrNull(path) != null;
    }

    @Override
    @Deprecated
    public boolean isDirectory(Path path) throws IOException {
        FileStatus status = statusOrNull(path);
        return status != null && status.isDirectory();
    }

    @Override
    @Deprecated
    public boolean isFile(Path path) throws IOException {
        FileStatus status = statusOrNull(path);
        return status != null && status.isFile();
    }

    private ListedEntries entries(Path path, int entriesMax) throws IOException {
        statistics.incrementReadOps(1);
        checkOpen();
        return operations.timed(OperationStatistics.LIST,
                () -> new ListedEntries(names, qualified(path), splitBytes, entriesMax));
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        try (ListedEntries entries = entries(path, LIST_ENTRIES_MAX)) {
            List<FileStatus> found = new ArrayList<>(entries.atHand());
            while (entries.hasNext()) {
                found.add(entries.next());
            }
            return found.toArray(new FileStatus[0]);
        }
    }

    @Override
    public RemoteIterator<FileStatus> listStatusIterator(Path path) throws IOException {
        return new Statuses(entries(path, PIECE_ENTRIES_MAX));
    }

    @Override
    protected RemoteIterator<LocatedFileStatus> listLocatedStatus(Path path, PathFilter filter)
            throws IOException {
        return new LocatedEntries(locality, entries(path, PIECE_ENTRIES_MAX), filter);
    }

    @Override
    public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) {
        return locality.locations(file, start, length);
    }

    @Override
    public ContentSummary getContentSummary(Path path) throws IOException {
        statistics.incrementReadOps(1);
        long[] sums = names.sums(name(path));
        return new ContentSummary.Builder().fileCount(sums[0]).directoryCount(sums[1])
                .length(sums[2]).spaceConsumed(sums[2]).build();
    }

    @Override
    public FsStatus getStatus(Path path) throws IOException {
        statistics.incrementReadOps(1);
        long[] totals = names.totals(name(path == null ? new Path("/") : path));
        return new FsStatus(totals[0], totals[1], totals[2]);
    }

    @Override
    @Deprecated
    public long getDefaultBlockSize() {
        return splitBytes;
    }

    @Override
    @Deprecated
    public short getDefaultReplication() {
        return 1;
    }

    @Override
    @Deprecated
    public FsServerDefaults getServerDefaults() throws IOException {
        FsServerDefaults given = super.getServerDefaults();
        return new FsServerDefaults(splitBytes, given.getBytesPerChecksum(),
                given.getWritePacketSize(), (short) 1, given.getFileBufferSize(),
                given.getEncryptDataTransfer(), given.getTrashInterval(),
                given.getChecksumType());
    }

    @Override
    public FileChecksum getFileChecksum(Path path, long length) throws IOException {
        TideFileStatus status = getFileStatus(path);
        if (status.isDirectory()) {
            throw new FileNotFoundException(path + ": while summing it: it is a directory");
        }
        return operations.timed(OperationStatistics.CHECKSUM, () -> new Checksums(
                getConf(), splitBytes).of(client, name(path), status.getLen(), length));
    }

    // Handles.

    @Override
    protected PathHandle createPathHandle(FileStatus status, Options.HandleOpt... options) {
        return TidePathHandle.of(status, options);
    }

    @Override
    public FSDataInputStream open(PathHandle handle, int bufferBytes) throws IOException {
        return open(resolved(handle), bufferBytes);
    }

    /** Where the file of a handle is, if it still is what the handle wants. */
    private Path resolved(PathHandle handle) throws IOException {
        TidePathHandle known = TidePathHandle.from(handle);
        Path path = new Path(ROOT.getScheme(), null, known.path());
        known.check(statusOrNull(path));
        return path;
    }

    @Override
    public MultipartUploaderBuilder<?, ?> createMultipartUploader(Path base) {
        return new FileSystemMultipartUploaderBuilder(new UploadedParts(this), base);
    }

    // The file system itself.

    /** True already: every call asks the parallel file system. */
    @Override
    public void msync() {}

    /** No token is needed: the kernel knows the user. */
    @Override
    public String getCanonicalServiceName() {
        return null;
    }

    @Override
    public boolean hasPathCapability(Path path, String capability) throws IOException {
        return Capabilities.has(names, name(path), capability)
                || super.hasPathCapability(path, capability);
    }

    @Override
    public IOStatistics getIOStatistics() {
        return operations.statistics();
    }

    @Override
    public StorageStatistics getStorageStatistics() {
        return operations.storageStatistics();
    }

    @Override
    public void close() throws IOException {
        if (client != null && !client.isClosed()) {
            client.flushWriters();
            operations.log(getConf());
        }
        try {
            super.close();
        } finally {
            if (client != null) {
                closeClient();
            }
        }
    }

    private void closeClient() throws IOException {
        if (!isSharing) {
            client.close();
        }
    }

    @Override
    public String toString() {
        return "TideFileSystem{" + ROOT + ", " + operations + "}";
    }
}
