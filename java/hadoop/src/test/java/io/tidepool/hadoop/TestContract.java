/*
 * Hadoop's file system contract, on a real node over a real directory: every abstract contract
 * class that Hadoop publishes but for those of three interfaces that tide:// does not claim. Lease
 * recovery would have to shut a writer out, safe mode belongs to a name server, and files cannot be
 * joined without harm to other writers; that all are declared absent is tested in
 * TestTideFileSystem. What is promised is in contract/tide.xml.
 */
package io.tidepool.hadoop;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.contract.AbstractBondedFSContract;
import org.apache.hadoop.fs.contract.AbstractContractAppendTest;
import org.apache.hadoop.fs.contract.AbstractContractBulkDeleteTest;
import org.apache.hadoop.fs.contract.AbstractContractContentSummaryTest;
import org.apache.hadoop.fs.contract.AbstractContractCopyFromLocalTest;
import org.apache.hadoop.fs.contract.AbstractContractCreateTest;
import org.apache.hadoop.fs.contract.AbstractContractDeleteTest;
import org.apache.hadoop.fs.contract.AbstractContractEtagTest;
import org.apache.hadoop.fs.contract.AbstractContractGetEnclosingRoot;
import org.apache.hadoop.fs.contract.AbstractContractGetFileStatusTest;
import org.apache.hadoop.fs.contract.AbstractContractMkdirTest;
import org.apache.hadoop.fs.contract.AbstractContractMultipartUploaderTest;
import org.apache.hadoop.fs.contract.AbstractContractOpenTest;
import org.apache.hadoop.fs.contract.AbstractContractPathHandleTest;
import org.apache.hadoop.fs.contract.AbstractContractRenameTest;
import org.apache.hadoop.fs.contract.AbstractContractRootDirectoryTest;
import org.apache.hadoop.fs.contract.AbstractContractSeekTest;
import org.apache.hadoop.fs.contract.AbstractContractSetTimesTest;
import org.apache.hadoop.fs.contract.AbstractContractStreamIOStatisticsTest;
import org.apache.hadoop.fs.contract.AbstractContractUnbufferTest;
import org.apache.hadoop.fs.contract.AbstractContractVectoredReadTest;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.junit.runner.RunWith;
import org.junit.runners.Suite;

/** The contract, class by class. */
@RunWith(Suite.class)
@Suite.SuiteClasses({
    TestContract.Append.class,
    TestContract.BulkDelete.class,
    TestContract.ContentSummary.class,
    TestContract.CopyFromLocal.class,
    TestContract.Create.class,
    TestContract.Delete.class,
    TestContract.Etag.class,
    TestContract.GetEnclosingRoot.class,
    TestContract.GetFileStatus.class,
    TestContract.Mkdir.class,
    TestContract.MultipartUploader.class,
    TestContract.Open.class,
    TestContract.PathHandle.class,
    TestContract.Rename.class,
    TestContract.RootDirectory.class,
    TestContract.Seek.class,
    TestContract.SetTimes.class,
    TestContract.StreamIOStatistics.class,
    TestContract.Unbuffer.class,
    TestContract.VectoredRead.class
})
public class TestContract {

    /** The contract of this file system. */
    static final class TideContract extends AbstractBondedFSContract {
        TideContract(Configuration configuration) {
            super(configuration);
            ContractNode.start();
            configuration.reloadConfiguration();
            addConfResource("contract/tide.xml");
        }

        @Override
        public String getScheme() {
            return TideFileSystem.SCHEME;
        }
    }

    /** Hadoop's own tests. */
    public static class Append extends AbstractContractAppendTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class BulkDelete extends AbstractContractBulkDeleteTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class ContentSummary extends AbstractContractContentSummaryTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class CopyFromLocal extends AbstractContractCopyFromLocalTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class Create extends AbstractContractCreateTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class Delete extends AbstractContractDeleteTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class Etag extends AbstractContractEtagTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class GetEnclosingRoot extends AbstractContractGetEnclosingRoot {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class GetFileStatus extends AbstractContractGetFileStatusTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class Mkdir extends AbstractContractMkdirTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class MultipartUploader extends AbstractContractMultipartUploaderTest {
        @Override
        protected int partSizeInBytes() {
            return 1024;
        }

        @Override
        protected int getTestPayloadCount() {
            return 3;
        }

        @Override
        protected boolean supportsConcurrentUploadsToSamePath() {
            return true;
        }

        @Override
        protected boolean finalizeConsumesUploadIdImmediately() {
            return true;
        }

        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class Open extends AbstractContractOpenTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class PathHandle extends AbstractContractPathHandleTest {
        /** With handles of this kind. */
        public PathHandle(String name, Options.HandleOpt[] options, boolean serialized) {
            super(name, options, serialized);
        }

        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class Rename extends AbstractContractRenameTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class RootDirectory extends AbstractContractRootDirectoryTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class Seek extends AbstractContractSeekTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class SetTimes extends AbstractContractSetTimesTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class StreamIOStatistics extends AbstractContractStreamIOStatisticsTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class Unbuffer extends AbstractContractUnbufferTest {
        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }

    /** Hadoop's own tests. */
    public static class VectoredRead extends AbstractContractVectoredReadTest {
        /** With buffers of this kind. */
        public VectoredRead(String buffers) {
            super(buffers);
        }

        @Override
        protected AbstractFSContract createContract(Configuration configuration) {
            return new TideContract(configuration);
        }
    }
}
