/*
 * Keys of the options of tide:// in a Hadoop configuration. Made by `tidepool generate docs`;
 * change the table of options, not this file. Values and defaults are the native library's.
 */
package io.tidepool.hadoop;

import java.util.Set;

/** Keys of `fs.tide.*`. */
public final class TideOptions {

    /** Version of the native calls. */
    static final int ABI = 6;

    /** What every key begins with. */
    static final String PREFIX = "fs.tide.";

    /**
     * Directory that tide:/// stands for; by default that of TIDEPOOL_PFS, of the node, or
     * of the configuration file of the node.
     */
    public static final String PFS = "fs.tide.pfs";

    /**
     * Socket of the node; by default TIDEPOOL_SOCKET, else that of a node of this user,
     * else root's.
     */
    public static final String SOCKET = "fs.tide.socket";

    /**
     * Go on with the PFS where no node answers; without it file systems and files do not
     * open. Default: true.
     */
    public static final String FALL_THROUGH = "fs.tide.fall.through";

    /**
     * Read resident bytes from the node's memory without asking it. Default: true.
     */
    public static final String SHORT_CIRCUIT = "fs.tide.short.circuit";

    /**
     * Read mode of files that are opened; by default that of the node's rule or mount. May
     * be given per open.
     */
    public static final String READ_MODE = "fs.tide.read.mode";

    /**
     * Write mode of files that are created; by default that of the node's rule or mount.
     * May be given per open.
     */
    public static final String WRITE_MODE = "fs.tide.write.mode";

    /**
     * Reads shorter than this go through a buffer of this size; 0 has none. Default: 64KiB.
     * May be given per open.
     */
    public static final String READ_BUFFER_BYTES = "fs.tide.read.buffer.bytes";

    /**
     * Writes are gathered up to this size. Default: 1MiB. May be given per open.
     */
    public static final String WRITE_BUFFER_BYTES = "fs.tide.write.buffer.bytes";

    /**
     * Size of a block as Hadoop sees it, and so of the splits of jobs. Default: 128MiB. May
     * be given per open.
     */
    public static final String SPLIT_BYTES = "fs.tide.split.bytes";

    /**
     * Names of this host for schedulers, each as a worker here registers; by default blocks
     * are where nodes of the cluster have them, and without other nodes on `localhost`,
     * which schedulers take for no preference.
     */
    public static final String HOST_NAMES = "fs.tide.host.names";

    /**
     * Directory of tide:/// in which users have their home directories, and so their trash.
     * Default: /user.
     */
    public static final String HOME_PREFIX = "fs.tide.home.prefix";

    /**
     * What becomes of a file system for another user than that of the process, as by doAs:
     * the PFS would do everything as the user of the process. Default: refuse.
     */
    public static final String OTHER_USERS = "fs.tide.other.users";

    /**
     * Stripe size of files that are created, where the PFS lets users choose. May be given
     * per open.
     */
    public static final String STRIPE_BYTES = "fs.tide.stripe.bytes";

    /**
     * Data servers that a file that is created is spread over. May be given per open.
     */
    public static final String STRIPE_COUNT = "fs.tide.stripe.count";

    /**
     * Data servers for files that are created in order, as the PFS names them. May be given
     * per open.
     */
    public static final String STRIPE_SERVERS = "fs.tide.stripe.servers";

    /**
     * Time after a failed attempt to reach the node until the next one. Default: 500.
     */
    public static final String RETRY_INTERVAL_MS = "fs.tide.retry.interval.ms";

    /**
     * How long one request to the node may take. Default: 600000.
     */
    public static final String REQUEST_TIMEOUT_MS = "fs.tide.request.timeout.ms";

    /** Those that each open may choose for itself. */
    static final Set<String> PER_OPEN = Set.of(
            READ_MODE,
            WRITE_MODE,
            READ_BUFFER_BYTES,
            WRITE_BUFFER_BYTES,
            SPLIT_BYTES,
            STRIPE_BYTES,
            STRIPE_COUNT,
            STRIPE_SERVERS);

    private TideOptions() {}
}
