/*
 * What tide:// promises of names and metadata beyond Hadoop's own suites, on a real node over a
 * real directory, or without a node. The directory is looked at from outside too.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.Trash;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclStatus;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Names and metadata of {@code tide://}. */
public class TestTideFileSystem {

    private static final Path BASE = new Path("/names");

    private FileSystem system;

    /** Connects. */
    @Before
    public void connect() throws IOException {
        system = ContractNode.fileSystem();
        system.mkdirs(BASE);
    }

    /** Cleans up. */
    @After
    public void clean() throws IOException {
        system.delete(BASE, true);
    }

    private static Path path(String name) {
        return new Path(BASE, name);
    }

    private static java.nio.file.Path below(String name) {
        return ContractNode.pfs().resolve("names").resolve(name);
    }

    private void write(String name, int bytes) throws IOException {
        try (FSDataOutputStream out = system.create(path(name))) {
            out.write(new byte[bytes]);
        }
    }

    @Test
    public void namesAreThoseOfTheDirectory() throws IOException {
        write("file", 1000);
        assertEquals(1000, Files.size(below("file")));
        Files.writeString(below("other"), "text");
        FileStatus status = system.getFileStatus(path("other"));
        assertEquals(4, status.getLen());
        assertEquals(Files.getLastModifiedTime(below("other")).toMillis(),
                status.getModificationTime());
        assertEquals(Files.getOwner(below("other")).getName(), status.getOwner());
        assertEquals(1, status.getReplication());
        assertEquals(128L << 20, status.getBlockSize());
        assertEquals(0, system.getFileStatus(BASE).getLen());
        assertEquals("tide:" + path("other"), status.getPath().toString());
    }

    @Test
    public void oddNamesComeAndGo() throws IOException {
        String[] names = {"a b", "a:b", "a%41", "a+b", "grün", "\u65e5\u672c", "\ud83d\ude00",
            "line\nbreak", "#hash?query", "-", "{x,y}", "\\back"};
        Set<String> expected = new TreeSet<>(Arrays.asList(names));
        for (String name : names) {
            Files.writeString(below(name), name);
        }
        Set<String> found = new TreeSet<>();
        for (FileStatus status : system.listStatus(BASE)) {
            found.add(status.getPath().getName());
            try (FSDataInputStream in = system.open(status.getPath())) {
                String text = new String(in.readAllBytes(), StandardCharsets.UTF_8);
                assertEquals(status.getPath().getName(), text);
            }
            assertTrue(system.delete(status.getPath(), false));
        }
        assertEquals(expected, found);
    }

    /** A Java program cannot name these by itself, so a program that can makes one. */
    @Test
    public void namesThatAreNoTextAreFoundReadMovedAndDeleted() throws Exception {
        String script = "printf text > \"$(printf 'raw\\377\\303name')\"";
        Process shell = new ProcessBuilder("sh", "-c", script)
                .directory(below("").toFile()).start();
        assertEquals(0, shell.waitFor());
        FileStatus[] list = system.listStatus(BASE);
        assertEquals(1, list.length);
        assertEquals("raw\udcff\udcc3name", list[0].getPath().getName());
        assertEquals(4, system.getFileStatus(list[0].getPath()).getLen());
        try (FSDataInputStream in = system.open(list[0].getPath())) {
            assertEquals("text", new String(in.readAllBytes(), StandardCharsets.UTF_8));
        }
        Path moved = new Path(BASE, list[0].getPath().getName() + "2");
        assertTrue(system.rename(list[0].getPath(), moved));
        assertTrue(system.delete(moved, false));
        assertEquals(0, system.listStatus(BASE).length);
    }

    @Test
    public void nothingLeadsAboveTheRoot() throws IOException {
        Path above = new Path("/../escape");
        assertThrows(IOException.class, () -> system.create(above).close());
        assertThrows(IOException.class, () -> system.getFileStatus(above));
        assertThrows(IOException.class, () -> system.delete(above, true));
        assertThrows(IOException.class, () -> system.rename(BASE, above));
        assertFalse(Files.exists(ContractNode.pfs().resolveSibling("escape")));
    }

    @Test
    public void theRootStays() throws IOException {
        write("file", 1);
        assertFalse(system.delete(new Path("/"), true));
        assertThrows(PathIsNotEmptyDirectoryException.class,
                () -> system.delete(new Path("/"), false));
        assertFalse(system.rename(new Path("/"), path("root")));
        assertTrue(system.exists(path("file")));
    }

    @Test
    public void hadoopsRulesOfCreatingMakingAndMoving() throws IOException {
        write("file", 1);
        assertThrows(FileAlreadyExistsException.class, () -> system.mkdirs(path("file")));
        assertThrows(ParentNotDirectoryException.class, () -> system.mkdirs(path("file/a/b")));
        assertThrows(FileAlreadyExistsException.class, () -> system.create(BASE, true));
        assertThrows(FileAlreadyExistsException.class, () -> system.create(path("file"), false));
        assertThrows(ParentNotDirectoryException.class, () -> system.create(path("file/a")));
        assertThrows(FileNotFoundException.class, () -> system.open(BASE));
        system.mkdirs(path("a/b"));
        assertFalse(system.rename(path("a"), path("a/b")));
        assertFalse(system.rename(path("a"), path("a/b/c")));
        assertFalse(system.rename(path("a"), path("a")));
        assertTrue(system.rename(path("file"), path("file")));
        assertFalse(system.rename(path("missing"), path("x")));
        assertTrue(system.rename(path("file"), path("a")));
        assertTrue(system.exists(path("a/file")));
        assertFalse(system.exists(path("a/file/below")));
    }

    @Test
    public void theMaskOfTheConfigurationDecidesAndThatOfTheProcessDoesNot() throws IOException {
        Configuration open = new Configuration();
        open.set("fs.permissions.umask-mode", "000");
        try (FileSystem own = FileSystem.newInstance(system.getUri(), open)) {
            own.create(path("file")).close();
            own.mkdirs(path("directory"));
            assertEquals(0666, own.getFileStatus(path("file")).getPermission().toShort());
            assertEquals(0777, own.getFileStatus(path("directory")).getPermission().toShort());
        }
    }

    @Test
    public void whatIsOverwrittenKeepsItsMode() throws IOException {
        write("private", 1);
        system.setPermission(path("private"), new FsPermission((short) 0600));
        Configuration open = new Configuration();
        open.set("fs.permissions.umask-mode", "002");
        try (FileSystem own = FileSystem.newInstance(system.getUri(), open)) {
            own.create(path("private"), true).close();
            assertEquals(0600, own.getFileStatus(path("private")).getPermission().toShort());
            own.create(path("new"), true).close();
            assertEquals(0664, own.getFileStatus(path("new")).getPermission().toShort());
        }
    }

    @Test
    public void aStatusIsPrintedAlsoWhereItsNameIsOfNoUse() throws IOException {
        Files.createSymbolicLink(below("circle"), java.nio.file.Path.of("circle"));
        FileStatus status;
        try (FileSystem own = FileSystem.newInstance(system.getUri(), new Configuration())) {
            status = own.listStatus(BASE)[0];
            assertTrue(status.toString(), status.toString().contains("circle"));
        }
        assertTrue(status.toString(), status.toString().contains("circle"));
    }

    @Test
    public void listsThatNobodyWantsToTheEndAreClosed() throws IOException {
        for (int number = 0; number < 5_000; number++) {
            Files.createFile(below("file-" + number));
        }
        for (var list : List.of(system.listStatusIterator(BASE), system.listLocatedStatus(BASE))) {
            assertTrue(list.hasNext());
            ((java.io.Closeable) list).close();
            assertFalse(list.hasNext());
        }
    }

    /** Older releases of Hadoop look at all signatures when they look for file systems. */
    @Test
    public void signaturesNameNoClassThatOldReleasesLack() {
        for (var method : TideFileSystem.class.getDeclaredMethods()) {
            assertFalse(method.toString(), method.toString().contains("BulkDelete"));
        }
    }

    @Test
    public void timesAreSetOneByOne() throws IOException {
        write("file", 1);
        system.setTimes(path("file"), 123_456_789_012L, 98_765_432_101L);
        FileStatus status = system.getFileStatus(path("file"));
        assertEquals(123_456_789_012L, status.getModificationTime());
        assertEquals(98_765_432_101L, status.getAccessTime());
        system.setTimes(path("file"), -1, 5_000);
        status = system.getFileStatus(path("file"));
        assertEquals(123_456_789_012L, status.getModificationTime());
        assertEquals(5_000, status.getAccessTime());
    }

    @Test
    public void hugeDirectoriesComeInPieces() throws IOException {
        Set<String> expected = new HashSet<>();
        for (int number = 0; number < 9_000; number++) {
            Files.createFile(below("file-" + number));
            expected.add("file-" + number);
        }
        Set<String> listed = new HashSet<>();
        for (FileStatus status : system.listStatus(BASE)) {
            listed.add(status.getPath().getName());
        }
        assertEquals(expected, listed);
        listed.clear();
        RemoteIterator<FileStatus> pieces = system.listStatusIterator(BASE);
        while (pieces.hasNext()) {
            assertTrue(listed.add(pieces.next().getPath().getName()));
        }
        assertEquals(expected, listed);
        RemoteIterator<LocatedFileStatus> located = system.listLocatedStatus(BASE);
        listed.clear();
        while (located.hasNext()) {
            assertTrue(listed.add(located.next().getPath().getName()));
        }
        assertEquals(expected, listed);
        assertEquals(1_000, system.globStatus(path("file-8???")).length);
    }

    @Test
    public void blocksAreAnywhereAndAsLongAsTheOptionSays() throws IOException {
        Configuration small = new Configuration();
        small.set(TideOptions.SPLIT_BYTES, "1MiB");
        write("file", 2_500_000);
        try (FileSystem own = FileSystem.newInstance(system.getUri(), small)) {
            FileStatus status = own.getFileStatus(path("file"));
            assertEquals(1 << 20, status.getBlockSize());
            BlockLocation[] all = own.getFileBlockLocations(status, 0, status.getLen());
            assertEquals(3, all.length);
            assertEquals(2_500_000 - (2 << 20), all[2].getLength());
            assertArrayEquals("no preference", new String[] {"localhost"}, all[0].getHosts());
            assertArrayEquals(all[0].getHosts(), all[0].getNames());
            BlockLocation[] part = own.getFileBlockLocations(status, (1 << 20) + 5, 10);
            assertEquals(1, part.length);
            assertEquals(1 << 20, part[0].getOffset());
            assertEquals(0, own.getFileBlockLocations(status, status.getLen(), 1).length);
        }
    }

    @Test
    public void memoryOnlyFilesHaveTheirLengthAndKeepTheirBytes() throws IOException {
        if (ContractNode.MODE.equals("absent")) {
            return;
        }
        Configuration memory = new Configuration();
        memory.set(TideOptions.WRITE_MODE, "memory");
        byte[] bytes = new byte[700_000];
        Arrays.fill(bytes, (byte) 7);
        try (FileSystem own = FileSystem.newInstance(system.getUri(), memory)) {
            try (FSDataOutputStream out = own.create(path("in-memory"))) {
                out.write(bytes);
            }
            assertTrue(Files.size(below("in-memory")) <= 256);
            assertEquals(bytes.length, own.getFileStatus(path("in-memory")).getLen());
            assertTrue(own.rename(path("in-memory"), path("moved")));
            own.setPermission(path("moved"), new FsPermission((short) 0600));
            own.setTimes(path("moved"), 1_000_000, 1_000_000);
            assertEquals(bytes.length, own.listStatus(BASE)[0].getLen());
            try (FSDataInputStream in = own.open(path("moved"))) {
                assertArrayEquals(bytes, in.readAllBytes());
            }
            own.truncate(path("moved"), 5);
            assertEquals(5, own.getFileStatus(path("moved")).getLen());
            assertTrue(own.delete(path("moved"), false));
        }
    }

    @Test
    public void theHostIsNamedAsItsWorkersAreWhereThatIsSaid() throws IOException {
        Configuration named = new Configuration();
        named.set(TideOptions.HOST_NAMES, "worker-7, 10.1.2.3");
        write("file", 100);
        try (FileSystem own = FileSystem.newInstance(system.getUri(), named)) {
            LocatedFileStatus located = own.listLocatedStatus(path("file")).next();
            assertArrayEquals(new String[] {"worker-7", "10.1.2.3"},
                    located.getBlockLocations()[0].getHosts());
        }
    }

    @Test
    public void optionsHoldForOneFileAndUnknownOnesThatMustHoldAreRefused() throws Exception {
        boolean noNode = ContractNode.MODE.equals("absent");
        try (FSDataOutputStream out = (FSDataOutputStream) system.createFile(path("one"))
                .must(TideOptions.WRITE_MODE, noNode ? "bypass" : "memory")
                .opt("fs.stranger.option", "x").build()) {
            out.write(new byte[1000]);
        }
        assertEquals(1000, system.getFileStatus(path("one")).getLen());
        assertTrue(noNode || Files.size(below("one")) <= 256);
        assertThrows(IllegalArgumentException.class, () -> system.createFile(path("two"))
                .must("fs.stranger.option", "x").build());
        assertThrows(IOException.class, () -> system.createFile(path("two"))
                .opt(TideOptions.WRITE_MODE, "sideways").build());
        assertThrows(IllegalArgumentException.class, () -> system.openFile(path("one"))
                .must("fs.stranger.option", "x").build());
        try (FSDataInputStream in = system.openFile(path("one"))
                .must(TideOptions.READ_MODE, "two-level").build().get()) {
            assertEquals(1000, in.readAllBytes().length);
        }
        for (String unknown : List.of("fs.tide.nonsense", TideOptions.SOCKET)) {
            assertThrows(unknown, IllegalArgumentException.class, () ->
                    system.openFile(path("one")).must(unknown, "x").build());
            assertThrows(unknown, IllegalArgumentException.class, () ->
                    system.createFile(path("two")).must(unknown, "x").build());
            system.openFile(path("one")).opt(unknown, "x").build().get().close();
        }
        try (FSDataOutputStream out = system.appendFile(path("one")).build()) {
            out.write(1);
        }
        assertEquals(1001, system.getFileStatus(path("one")).getLen());
    }

    @Test
    public void renamedFilesStayInMemoryAndDeletedOnesLeaveIt() throws IOException {
        if (!ContractNode.MODE.equals("through")) {
            return;
        }
        write("file", 5 << 20);
        write("small", 5000);
        readAll(path("file"));
        readAll(path("small"));
        long before = ContractNode.counter("pfs_read_bytes");
        system.rename(path("file"), path("moved"));
        system.setPermission(path("moved"), new FsPermission((short) 0600));
        system.rename(path("small"), path("moved-small"));
        readAll(path("moved"));
        readAll(path("moved-small"));
        assertEquals(before, ContractNode.counter("pfs_read_bytes"));
        long held = ContractNode.counter("resident_bytes");
        system.delete(BASE, true);
        assertTrue(ContractNode.counter("resident_bytes") <= held - (5 << 20));
    }

    private void readAll(Path path) throws IOException {
        try (FSDataInputStream in = system.open(path)) {
            assertEquals(system.getFileStatus(path).getLen(), in.readAllBytes().length);
        }
    }

    @Test
    public void linksMayLeadOutsideAndSaySo() throws IOException {
        java.nio.file.Path outside = Files.createTempFile("tidepool-outside-", "");
        Files.writeString(outside, "text");
        Files.createSymbolicLink(below("link"), outside);
        try {
            readAll(path("link"));
            assertEquals(4, system.getFileStatus(path("link")).getLen());
            assertEquals("file:" + outside, system.getLinkTarget(path("link")).toString());
            assertTrue(system.delete(path("link"), false));
            assertTrue(Files.exists(outside));
            Files.createSymbolicLink(below("nowhere"), java.nio.file.Path.of("missing"));
            FileStatus[] list = system.listStatus(BASE);
            assertTrue(list.length == 1 && list[0].isSymlink());
            assertFalse(system.exists(path("nowhere")));
        } finally {
            Files.delete(outside);
        }
    }

    @Test
    public void attributesAreThoseOfTheDirectory() throws IOException {
        write("file", 1);
        byte[] value = {1, 2, 3};
        system.setXAttr(path("file"), "user.color", value);
        assertArrayEquals(value, system.getXAttr(path("file"), "user.color"));
        assertEquals(Set.of("user.color"), new HashSet<>(system.listXAttrs(path("file"))));
        assertThrows(IOException.class, () -> system.getXAttr(path("file"), "user.none"));
        assertThrows(IOException.class,
                () -> system.setXAttr(path("file"), "user.tidepool.memory", value));
        system.removeXAttr(path("file"), "user.color");
        assertTrue(system.listXAttrs(path("file")).isEmpty());
    }

    @Test
    public void accessListsAreThoseOfTheDirectory() throws IOException {
        if (!system.hasPathCapability(BASE, "fs.capability.paths.acls")) {
            assertThrows(IOException.class, () -> system.setAcl(BASE,
                    AclEntry.parseAclSpec("user::rwx,group::r-x,other::r-x", true)));
            return;
        }
        write("file", 1);
        system.setPermission(path("file"), new FsPermission((short) 0640));
        assertFalse(system.getFileStatus(path("file")).hasAcl());
        system.modifyAclEntries(path("file"), AclEntry.parseAclSpec("user:nobody:rw-", true));
        assertTrue(system.getFileStatus(path("file")).hasAcl());
        AclStatus list = system.getAclStatus(path("file"));
        assertEquals("[user:nobody:rw-, group::r--]", list.getEntries().toString());
        assertEquals(FsAction.READ_WRITE,
                system.getFileStatus(path("file")).getPermission().getGroupAction());
        system.removeAclEntries(path("file"), AclEntry.parseAclSpec("user:nobody", false));
        assertTrue(system.getAclStatus(path("file")).getEntries().isEmpty());
        assertEquals(0640, system.getFileStatus(path("file")).getPermission().toShort());
        system.mkdirs(path("directory"));
        system.modifyAclEntries(path("directory"),
                AclEntry.parseAclSpec("default:user:nobody:r-x", true));
        write("directory/inherits", 1);
        assertTrue(system.getAclStatus(path("directory/inherits")).getEntries().toString()
                .contains("user:nobody:r-x"));
        system.removeDefaultAcl(path("directory"));
        assertTrue(system.getAclStatus(path("directory")).getEntries().isEmpty());
        system.setAcl(path("file"), AclEntry.parseAclSpec(
                "user::rw-,user:nobody:r--,group::---,other::---", true));
        system.removeAcl(path("file"));
        assertEquals(0600, system.getFileStatus(path("file")).getPermission().toShort());
    }

    @Test
    public void spaceSumsAndTrash() throws IOException {
        write("a/one", 1000);
        write("a/b/two", 2000);
        assertEquals(3000, system.getContentSummary(BASE).getLength());
        assertEquals(3, system.getContentSummary(BASE).getDirectoryCount());
        FsStatus space = system.getStatus();
        assertTrue(space.getCapacity() >= space.getUsed() && space.getRemaining() > 0);
        Configuration bin = new Configuration();
        bin.set("fs.trash.interval", "60");
        assertTrue(Trash.moveToAppropriateTrash(system, path("a/one"), bin));
        assertFalse(system.exists(path("a/one")));
        Path kept = new Path(system.getTrashRoot(BASE), "Current" + path("a/one"));
        assertEquals(1000, system.getFileStatus(kept).getLen());
        system.delete(system.getHomeDirectory(), true);
    }

    @Test
    public void filesAreNotJoinedAndNothingOfThemChanges() throws IOException {
        write("target", 10);
        write("one", 20);
        var error = assertThrows(UnsupportedOperationException.class,
                () -> system.concat(path("target"), new Path[] {path("one")}));
        assertTrue(error.toString(), error.getMessage().contains("-blocksperchunk"));
        assertEquals(10, Files.size(below("target")));
        assertEquals(20, Files.size(below("one")));
        assertFalse(system.hasPathCapability(BASE, "fs.capability.paths.concat"));
        // How distcp asks.
        assertThrows(UnsupportedOperationException.class, () -> system.concat(null, null));
    }

    @Test
    public void whatCannotBeReadHasNoChecksum() throws Exception {
        assertEquals(0, new ProcessBuilder("mkfifo", below("pipe").toString()).start().waitFor());
        assertThrows(IOException.class, () -> system.getFileChecksum(path("pipe")));
        String stub = "TIDEPOOL MEMORY-ONLY STUB 1 length=0 holder=gone pid=1";
        Files.writeString(below("lost"), stub + " ".repeat(256 - stub.length()));
        assertThrows(IOException.class, () -> system.getFileChecksum(path("lost")));
        write("empty", 0);
        assertNotNull(system.getFileChecksum(path("empty")));
    }

    @Test
    public void handlesThatAreNoneAreSaidToBe() throws IOException {
        write("file", 10);
        ByteBuffer whole = system.getPathHandle(system.getFileStatus(path("file"))).bytes();
        for (int length = 0; length < whole.limit(); length++) {
            ByteBuffer part = whole.duplicate().limit(length);
            assertThrows(length + " bytes", InvalidPathHandleException.class,
                    () -> system.open((PathHandle) part::duplicate));
        }
    }

    @Test
    public void targetsOfLinksThatAreNoTextCanBeOpened() throws Exception {
        String script = "cd \"$0\" && printf x > \"$(printf 't\\377')\""
                + " && ln -s \"$(printf 't\\377')\" link";
        assertEquals(0, new ProcessBuilder("sh", "-c", script, below("").toString())
                .start().waitFor());
        Path target = system.getLinkTarget(path("link"));
        assertEquals("t\udcff", target.toString());
        assertEquals(1, system.getFileStatus(new Path(BASE, target)).getLen());
    }

    @Test
    public void whatIsNotThereIsDeclaredAbsent() throws IOException {
        for (String absent : new String[] {"fs.capability.lease.recoverable",
            "fs.capability.safe.mode", "fs.capability.paths.storagepolicy",
            "fs.capability.paths.snapshots"}) {
            assertFalse(absent, system.hasPathCapability(BASE, absent));
        }
        assertNull(system.getCanonicalServiceName());
        assertEquals(0, system.addDelegationTokens("nobody",
                new org.apache.hadoop.security.Credentials()).length);
        system.msync();
    }

    @Test
    public void fileContextNeedsNoConfigurationOnceTheFileSystemIsLoaded() throws IOException {
        FileContext context = FileContext.getFileContext(
                java.net.URI.create("tide:///"), new Configuration());
        assertTrue(context.util().exists(BASE));
    }

    /** Streaming sinks publish what they wrote this way, and readers must never find a gap. */
    @Test
    public void aRenameThatReplacesLeavesNoGap() throws Exception {
        FileContext context = FileContext.getFileContext(
                java.net.URI.create("tide:///"), new Configuration());
        write("target", 1);
        AtomicBoolean ended = new AtomicBoolean();
        AtomicLong gaps = new AtomicLong();
        Thread watcher = new Thread(() -> {
            while (!ended.get()) {
                gaps.addAndGet(Files.exists(below("target")) ? 0 : 1);
            }
        });
        watcher.start();
        for (int round = 0; round < 200; round++) {
            Files.createFile(below("source"));
            context.rename(path("source"), path("target"), Options.Rename.OVERWRITE);
        }
        ended.set(true);
        watcher.join();
        assertEquals(0, gaps.get());
    }

    @Test
    public void aHostIsRefusedWithTheRemedy() {
        IOException error = assertThrows(IOException.class, () -> FileSystem.get(
                java.net.URI.create("tide://host/a"), new Configuration()));
        assertTrue(error.getMessage(), error.getMessage().contains("three slashes"));
    }
}
