/*
 * What Hadoop's flags of a create mean for an open of the parallel file system.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.EnumSet;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.Path;

final class OpenFlags {

    private OpenFlags() {}

    /** Flags of {@link NativeFile}; combinations without a meaning are refused. */
    static int of(Path path, EnumSet<CreateFlag> flags) throws IOException {
        CreateFlag.validate(flags);
        boolean exists = flags.contains(CreateFlag.APPEND) && !flags.contains(CreateFlag.CREATE)
                || flags.contains(CreateFlag.OVERWRITE) && !flags.contains(CreateFlag.CREATE);
        CreateFlag.validate(path, exists, flags);
        int open = 0;
        if (flags.contains(CreateFlag.APPEND)) {
            open |= NativeFile.APPEND;
        }
        if (flags.contains(CreateFlag.OVERWRITE)) {
            open |= NativeFile.TRUNCATE;
        }
        if (flags.contains(CreateFlag.CREATE)) {
            open |= open == 0 ? NativeFile.CREATE_NEW : NativeFile.CREATE;
        }
        return open;
    }
}
