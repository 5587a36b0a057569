/*
 * Where blocks are, for schedulers: this node holds, or reads at its own speed, every byte. Names
 * this host in each way in which schedulers know it, because they compare texts: YARN and Flink
 * take the canonical name, a worker of Spark by itself the address. Asks no node.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

final class Locality {

    private static final Logger LOG = LoggerFactory.getLogger(Locality.class);
    private static final BlockLocation[] NONE = {};

    /** What the system says, looked up once: it does not change while a process lives. */
    private static final class Host {
        static final String[] NAMES = names();

        private static String[] names() {
            Set<String> names = new LinkedHashSet<>();
            try {
                InetAddress own = InetAddress.getLocalHost();
                names.add(own.getCanonicalHostName());
                names.add(reachable(own).getHostAddress());
            } catch (IOException error) {
                LOG.debug("this host has no name or address", error);
            }
            return names.isEmpty() ? new String[] {"localhost"} : names.toArray(new String[0]);
        }

        /**
         * The address that others reach this host by, where its name leads to itself alone: chosen
         * as Spark chooses it, or the two would not be the same.
         */
        private static InetAddress reachable(InetAddress own) throws IOException {
            if (!own.isLoopbackAddress()) {
                return own;
            }
            var interfaces = Collections.list(NetworkInterface.getNetworkInterfaces());
            Collections.reverse(interfaces);
            for (NetworkInterface each : interfaces) {
                List<InetAddress> addresses = new ArrayList<>(
                        Collections.list(each.getInetAddresses()));
                addresses.removeIf(
                        found -> found.isLinkLocalAddress() || found.isLoopbackAddress());
                for (InetAddress found : addresses) {
                    if (found instanceof Inet4Address) {
                        return found;
                    }
                }
                if (!addresses.isEmpty()) {
                    // Made anew without the name of the interface.
                    return InetAddress.getByAddress(addresses.get(0).getAddress());
                }
            }
            return own;
        }
    }

    private final String[] names;

    /**
     * Names the host.
     *
     * @param given names to use; those that the system says where there are none
     */
    Locality(String[] given) {
        this.names = given.length == 0 ? Host.NAMES : given;
    }

    /** The blocks of a file that a range touches. */
    BlockLocation[] locations(FileStatus file, long start, long length) {
        if (start < 0 || length < 0) {
            throw new IllegalArgumentException("Invalid start or len parameter");
        }
        if (file == null) {
            return null;
        }
        long size = file.getLen();
        if (file.isDirectory() || start >= size || length == 0) {
            return NONE;
        }
        long block = Math.max(file.getBlockSize(), 1);
        long end = length > size - start ? size : start + length;
        long first = start / block;
        int count = Math.toIntExact((end - 1) / block - first + 1);
        BlockLocation[] locations = new BlockLocation[count];
        for (int index = 0; index < count; index++) {
            long offset = (first + index) * block;
            long bytes = Math.min(block, size - offset);
            locations[index] = new BlockLocation(names, names, offset, bytes);
        }
        return locations;
    }
}
