/*
 * The same file system for FileContext, which Hadoop finds by fs.AbstractFileSystem.tide.impl.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** {@code tide://} for FileContext. */
public final class Tide extends DelegateToFileSystem {

    /**
     * Called by Hadoop.
     *
     * @param name of the file system; only the scheme counts
     * @param configuration with {@code fs.tide.*}
     */
    public Tide(URI name, Configuration configuration) throws IOException, URISyntaxException {
        super(name, new TideFileSystem(), configuration, TideFileSystem.SCHEME, false);
    }

    @Override
    public int getUriDefaultPort() {
        return -1;
    }
}
