/*
 * Hadoop's contract of distcp, between the local file system and tide:// on a real node, both ways:
 * whole trees, updates that copy what differs, large files, direct writes. Its jobs run in this
 * JVM; distcp from and to a real HDFS on YARN is an example (`./x example distcp`).
 */
package io.tidepool.hadoop;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.tools.contract.AbstractContractDistCpTest;

/** Hadoop's own tests. */
public class TestDistCp extends AbstractContractDistCpTest {

    /** Jobs of this JVM are done in less than the seconds after which they are asked for. */
    private static final int POLL_INTERVAL_MS = 50;

    @Override
    protected Configuration createConfiguration() {
        Configuration configuration = super.createConfiguration();
        configuration.setInt(Job.COMPLETION_POLL_INTERVAL_KEY, POLL_INTERVAL_MS);
        return configuration;
    }

    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
        return new TestContract.TideContract(configuration);
    }
}
