/*
 * What tide:// can do at a path. Each line is true as it stands, or asked of the parallel file
 * system; what is not named here is left to Hadoop's defaults.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.Locale;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.impl.PathCapabilitiesSupport;

final class Capabilities {

    private Capabilities() {}

    /** Whether this file system says that it has a capability; false leaves it open. */
    static boolean has(NativeNames names, String path, String capability) throws IOException {
        String wanted = PathCapabilitiesSupport.validatePathCapabilityArgs(
                new Path(path), capability);
        return switch (wanted.toLowerCase(Locale.ROOT)) {
            case CommonPathCapabilities.FS_APPEND,
                    CommonPathCapabilities.FS_CHECKSUMS,
                    CommonPathCapabilities.FS_MULTIPART_UPLOADER,
                    CommonPathCapabilities.FS_PATHHANDLES,
                    CommonPathCapabilities.FS_PERMISSIONS,
                    CommonPathCapabilities.FS_SYMLINKS,
                    CommonPathCapabilities.FS_TRUNCATE,
                    CommonPathCapabilities.ETAGS_AVAILABLE,
                    CommonPathCapabilities.ETAGS_PRESERVED_IN_RENAME -> true;
            case CommonPathCapabilities.FS_ACLS -> answers(names, path, AccessList.ATTRIBUTE);
            case CommonPathCapabilities.FS_XATTRS -> answers(names, path, "user.any");
            default -> false;
        };
    }

    /** Whether attributes of this kind can be asked for here. */
    private static boolean answers(NativeNames names, String path, String attribute) {
        try {
            names.attribute(path, attribute);
            return true;
        } catch (IOException error) {
            return false;
        }
    }
}
