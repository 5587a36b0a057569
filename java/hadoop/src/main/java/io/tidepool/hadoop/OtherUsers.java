/*
 * File systems for another user than that of the process, by doAs or HADOOP_USER_NAME: the kernel
 * would do all of it as the user of the process, so what is refused elsewhere would be done here.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.security.UserGroupInformation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

final class OtherUsers {

    private static final Logger LOG = LoggerFactory.getLogger(OtherUsers.class);

    private OtherUsers() {}

    /**
     * Whether this is done for a user other than the one that logged in, as by doAs. There may be
     * hundreds in a process, each with its own file systems.
     */
    static boolean isAnother() throws IOException {
        return !UserGroupInformation.getCurrentUser().equals(UserGroupInformation.getLoginUser());
    }

    /** Refuses, or warns of, a user other than that of this process, as the options say. */
    static void check(Configuration configuration) throws IOException {
        String asked = UserGroupInformation.getCurrentUser().getShortUserName();
        String how = configuration.getTrimmed(TideOptions.OTHER_USERS, "");
        if (how.toLowerCase(Locale.ROOT).equals("allow")) {
            return;
        }
        NativeLibrary.load();
        int number = (Integer) Files.getAttribute(Path.of("/proc/self"), "unix:uid");
        String own = NativeNames.user(number);
        if (asked.equals(own) || asked.equals(System.getProperty("user.name"))) {
            return;
        }
        String what = "while opening tide:/" + "// for " + asked + ": this process is user "
                + own + "'s, and the parallel file system does everything as that user";
        if (!how.toLowerCase(Locale.ROOT).equals("warn")) {
            throw new AccessControlException(what + " (run it as " + asked + ", or set "
                    + TideOptions.OTHER_USERS + " to warn or allow)");
        }
        LOG.warn("{}", what);
    }
}
