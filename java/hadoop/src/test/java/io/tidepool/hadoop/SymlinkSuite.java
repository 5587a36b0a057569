/*
 * Hadoop's suite of symbolic links. The links of tide:// are those of the PFS, which the kernel
 * resolves, as Hadoop's local file system has it: where Hadoop's tests tell the local file
 * system from HDFS, the tests here say what holds of links that the kernel resolves.
 */
package io.tidepool.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.SymlinkBaseTest;
import org.junit.Assert;
import org.junit.Test;

/** The suite for links that the kernel resolves. */
public abstract class SymlinkSuite extends SymlinkBaseTest {

    @Override
    protected String getScheme() {
        return TideFileSystem.SCHEME;
    }

    @Override
    protected String testBaseDir1() {
        return "/links/test1";
    }

    @Override
    protected String testBaseDir2() {
        return "/links/test2";
    }

    @Override
    protected URI testURI() {
        return URI.create("tide:///");
    }

    private Path file(String name) {
        return new Path(testBaseDir1(), name);
    }

    /** A link shows what it leads to, under the name that was asked for. */
    private void checkShows(Path target, Path link) throws IOException {
        FileStatus status = wrapper.getFileStatus(link);
        Assert.assertEquals(wrapper.getFileStatus(target).getLen(), status.getLen());
        Assert.assertFalse(status.isSymlink());
        Assert.assertEquals(wrapper.makeQualified(link), status.getPath());
        FileStatus itself = wrapper.getFileLinkStatus(link);
        Assert.assertTrue(itself.isSymlink());
        Assert.assertEquals(wrapper.makeQualified(link), itself.getPath());
        Assert.assertEquals(wrapper.makeQualified(target), itself.getSymlink());
    }

    @Override
    @Test(timeout = 10000)
    public void testStatLinkToFile() throws IOException {
        createAndWriteFile(file("file"));
        wrapper.createSymlink(file("file"), file("link"), false);
        Assert.assertEquals(file("file"), wrapper.getLinkTarget(file("link")));
        checkShows(file("file"), file("link"));
    }

    @Override
    @Test(timeout = 10000)
    public void testStatRelLinkToFile() throws IOException {
        createAndWriteFile(file("file"));
        wrapper.createSymlink(new Path("file"), file("link"), false);
        Assert.assertEquals(new Path("file"), wrapper.getLinkTarget(file("link")));
        checkShows(file("file"), file("link"));
    }

    @Override
    @Test(timeout = 10000)
    public void testAccessFileViaInterSymlinkRelTarget() throws IOException {
        Path directory = file("dir");
        Path viaLink = new Path(file("linkToDir"), "file");
        wrapper.mkdir(directory, FileContext.DEFAULT_PERM, false);
        wrapper.createSymlink(new Path("dir"), file("linkToDir"), false);
        createAndWriteFile(viaLink);
        Assert.assertEquals(wrapper.makeQualified(viaLink),
                wrapper.getFileStatus(viaLink).getPath());
        Assert.assertEquals(wrapper.getFileStatus(viaLink), wrapper.getFileLinkStatus(viaLink));
        Assert.assertEquals(wrapper.getFileStatus(new Path(directory, "file")).getLen(),
                wrapper.getFileStatus(viaLink).getLen());
    }

    /** As Hadoop's test, but that a tide name without a host is whole. */
    @Override
    @Test(timeout = 10000)
    public void testCreateLinkUsingRelPaths() throws IOException {
        createAndWriteFile(file("file"));
        wrapper.setWorkingDirectory(new Path(testBaseDir1()));
        wrapper.createSymlink(new Path("file"), new Path("linkToFile"), false);
        checkReads("linkToFile");
        // The target moves with the directory, and so the link leads to it.
        wrapper.rename(new Path(testBaseDir1()), new Path(testBaseDir2()),
                Options.Rename.OVERWRITE);
        Path moved = new Path(testBaseDir2(), "linkToFile");
        Assert.assertEquals(wrapper.makeQualified(new Path(testBaseDir2(), "file")),
                wrapper.getFileLinkStatus(moved).getSymlink());
        readFile(moved);
    }

    /** As Hadoop's test, but that a tide name without a host is whole. */
    @Override
    @Test(timeout = 10000)
    public void testCreateLinkUsingAbsPaths() throws IOException {
        createAndWriteFile(file("file"));
        wrapper.createSymlink(file("file"), file("linkToFile"), false);
        checkReads("linkToFile");
        wrapper.rename(new Path(testBaseDir1()), new Path(testBaseDir2()),
                Options.Rename.OVERWRITE);
        Path moved = new Path(testBaseDir2(), "linkToFile");
        Assert.assertEquals(wrapper.makeQualified(file("file")),
                wrapper.getFileLinkStatus(moved).getSymlink());
        Assert.assertThrows(FileNotFoundException.class, () -> readFile(moved));
    }

    private void checkReads(String link) throws IOException {
        checkShows(file("file"), file(link));
        wrapper.setWorkingDirectory(new Path(testBaseDir1()));
        readFile(new Path(link));
        readFile(file(link));
        readFile(new Path("tide://" + file(link)));
    }

    /** A link holds a path of the parallel file system, which has no scheme. */
    @Override
    @Test(timeout = 10000)
    public void testCreateLinkUsingFullyQualPaths() throws IOException {
        Path qualified = new Path("tide://" + file("file"));
        createAndWriteFile(file("file"));
        wrapper.createSymlink(qualified, new Path("tide://" + file("linkToFile")), false);
        Assert.assertEquals(file("file"), wrapper.getLinkTarget(file("linkToFile")));
        checkShows(file("file"), file("linkToFile"));
        wrapper.rename(new Path(testBaseDir1()), new Path(testBaseDir2()),
                Options.Rename.OVERWRITE);
        Path moved = new Path(testBaseDir2(), "linkToFile");
        Assert.assertEquals(qualified, wrapper.getFileLinkStatus(moved).getSymlink());
        Assert.assertThrows(FileNotFoundException.class, () -> readFile(moved));
    }

    /** A scheme without a host is all that a tide name has. */
    @Override
    @Test(timeout = 10000)
    public void testCreateLinkUsingPartQualPath1() throws IOException {
        Path target = new Path("tide://" + file("file"));
        wrapper.createSymlink(target, file("link"), false);
        Assert.assertEquals(target, wrapper.getFileLinkStatus(file("link")).getSymlink());
        Assert.assertThrows(FileNotFoundException.class, () -> readFile(file("link")));
        createAndWriteFile(file("file"));
        readFile(file("link"));
    }

    /** A host without a scheme is no tide name. */
    @Override
    @Test(timeout = 10000)
    public void testCreateLinkUsingPartQualPath2() throws IOException {
        Path target = new Path("//host" + file("file"));
        Assert.assertThrows(IOException.class,
                () -> wrapper.createSymlink(target, file("link"), false));
    }

    @Override
    @Test(timeout = 10000)
    public void testRecursiveLinks() throws IOException {
        wrapper.createSymlink(file("link1"), file("link2"), false);
        wrapper.createSymlink(file("link2"), file("link1"), false);
        IOException error =
                Assert.assertThrows(IOException.class, () -> readFile(file("link1")));
        Assert.assertTrue(error.getMessage(), error.getMessage().contains("symbolic links"));
        Assert.assertTrue(wrapper.getFileLinkStatus(file("link1")).isSymlink());
    }
}
