package io.tidepool.flink;

import io.tidepool.hadoop.TideFileSystem;
import java.io.IOException;
import java.net.URI;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.core.fs.FileSystemFactory;
import org.apache.flink.runtime.fs.hdfs.HadoopFileSystem;
import org.apache.flink.runtime.util.HadoopUtils;

/**
 * Lets Flink open {@code tide:///}: its own way to Hadoop's file systems asks for a host in every
 * address, which a tide name has not. Flink finds this class by itself where the jar, the one of
 * {@code flink-hadoop-fs} and Hadoop's client are in its {@code lib}; nowhere else is it loaded.
 */
public final class TideFileSystemFactory implements FileSystemFactory {

    private static final URI ROOT = URI.create("tide:///");

    private Configuration configuration = new Configuration();

    /** For Flink. */
    public TideFileSystemFactory() {
    }

    @Override
    public String getScheme() {
        return ROOT.getScheme();
    }

    @Override
    public void configure(Configuration flinkConfiguration) {
        configuration = flinkConfiguration;
    }

    /**
     * The file system of {@code tide:///}, as Hadoop's configuration and Flink's options of it say.
     *
     * @throws IOException where the address names a host, or the root is not known
     */
    @Override
    public FileSystem create(URI address) throws IOException {
        TideFileSystem files = new TideFileSystem();
        files.initialize(address.getAuthority() == null ? ROOT : address,
                HadoopUtils.getHadoopConfiguration(configuration));
        return new HadoopFileSystem(files);
    }
}
