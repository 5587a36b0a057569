/*
 * Hadoop's other suites for file systems and file contexts, on a real node over a real directory.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FCStatisticsBaseTest;
import org.apache.hadoop.fs.FSMainOperationsBaseTest;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileContextCreateMkdirBaseTest;
import org.apache.hadoop.fs.FileContextMainOperationsBaseTest;
import org.apache.hadoop.fs.FileContextPermissionBase;
import org.apache.hadoop.fs.FileContextTestWrapper;
import org.apache.hadoop.fs.FileContextURIBase;
import org.apache.hadoop.fs.FileContextUtilBase;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileSystemContractBaseTest;
import org.apache.hadoop.fs.FileSystemTestWrapper;
import org.apache.hadoop.fs.Path;
import org.junit.After;
import org.junit.Assert;
import org.junit.Assume;
import org.junit.Before;
import org.junit.BeforeClass;
import org.junit.runner.RunWith;
import org.junit.runners.Suite;

/** The suites, class by class. */
@RunWith(Suite.class)
@Suite.SuiteClasses({
    TestSuites.SystemContract.class,
    TestSuites.MainOperations.class,
    TestSuites.ContextMainOperations.class,
    TestSuites.ContextCreateMkdir.class,
    TestSuites.ContextPermission.class,
    TestSuites.ContextUri.class,
    TestSuites.ContextUtil.class,
    TestSuites.ContextStatistics.class,
    TestSuites.ContextSymlinks.class,
    TestSuites.SystemSymlinks.class,
})
public class TestSuites {

    /** The contract of FileSystem as it was before the contract classes. */
    public static class SystemContract extends FileSystemContractBaseTest {
        /** Connects. */
        @Before
        public void setUp() throws Exception {
            fs = ContractNode.fileSystem();
        }
    }

    /** Main operations of FileSystem. */
    public static class MainOperations extends FSMainOperationsBaseTest {
        /** In a directory of its own. */
        public MainOperations() {
            super("/main");
        }

        @Override
        protected FileSystem createFileSystem() throws IOException {
            ContractNode.start();
            return FileSystem.newInstance(URI.create("tide:///"), new Configuration());
        }

        @Override
        protected Path getDefaultWorkingDirectory() throws IOException {
            return ContractNode.fileSystem().getHomeDirectory();
        }

        /** The superuser reads every directory; TestTwoUsers asks this of another user. */
        @Override
        public void testListStatusThrowsExceptionForUnreadableDir() throws Exception {
            Assume.assumeFalse("root reads every directory", isRoot());
            super.testListStatusThrowsExceptionForUnreadableDir();
        }

        /** As above. */
        @Override
        public void testGlobStatusThrowsExceptionForUnreadableDir() throws Exception {
            Assume.assumeFalse("root reads every directory", isRoot());
            super.testGlobStatusThrowsExceptionForUnreadableDir();
        }

        private static boolean isRoot() {
            return System.getProperty("user.name").equals("root");
        }
    }

    /** Main operations of FileContext. */
    public static class ContextMainOperations extends FileContextMainOperationsBaseTest {
        @Override
        @Before
        public void setUp() throws Exception {
            fc = ContractNode.fileContext();
            super.setUp();
        }

        @Override
        protected Path getDefaultWorkingDirectory() throws IOException {
            return fc.getHomeDirectory();
        }

        @Override
        protected boolean listCorruptedBlocksSupported() {
            return false;
        }
    }

    /** Creating and making directories through FileContext. */
    public static class ContextCreateMkdir extends FileContextCreateMkdirBaseTest {
        @Override
        @Before
        public void setUp() throws Exception {
            fc = ContractNode.fileContext();
            super.setUp();
        }
    }

    /** Permissions through FileContext. */
    public static class ContextPermission extends FileContextPermissionBase {
        @Override
        protected FileContext getFileContext() throws Exception {
            return ContractNode.fileContext();
        }
    }

    /** Names through FileContext. */
    public static class ContextUri extends FileContextURIBase {
        @Override
        @Before
        public void setUp() throws Exception {
            fc1 = ContractNode.fileContext();
            fc2 = ContractNode.fileContext();
            super.setUp();
        }
    }

    /** Utilities of FileContext. */
    public static class ContextUtil extends FileContextUtilBase {
        @Override
        @Before
        public void setUp() throws Exception {
            fc = ContractNode.fileContext();
            super.setUp();
        }
    }

    /** Statistics of FileContext. */
    public static class ContextStatistics extends FCStatisticsBaseTest {
        /** Connects. */
        @Before
        public void setUp() throws Exception {
            fc = ContractNode.fileContext();
            FileContext.clearStatistics();
            Path directory = fileContextTestHelper.getTestRootPath(fc, "test");
            fc.mkdir(directory, FileContext.DEFAULT_PERM, true);
        }

        /** Cleans up. */
        @After
        public void tearDown() throws Exception {
            fc.delete(fileContextTestHelper.getTestRootPath(fc, "test"), true);
        }

        @Override
        protected void verifyReadBytes(FileSystem.Statistics stats) {
            Assert.assertEquals(2 * blockSize, stats.getBytesRead());
        }

        @Override
        protected void verifyWrittenBytes(FileSystem.Statistics stats) {
            Assert.assertEquals(blockSize, stats.getBytesWritten());
        }

        @Override
        protected URI getFsUri() {
            return URI.create("tide:///");
        }
    }

    /** Symbolic links through FileContext. */
    public static class ContextSymlinks extends SymlinkSuite {
        /** Connects. */
        @BeforeClass
        public static void connect() throws Exception {
            wrapper = new FileContextTestWrapper(ContractNode.fileContext());
        }
    }

    /** Symbolic links through FileSystem. */
    public static class SystemSymlinks extends SymlinkSuite {
        /** Connects. */
        @BeforeClass
        public static void connect() throws Exception {
            wrapper = new FileSystemTestWrapper(ContractNode.fileSystem());
        }
    }
}
