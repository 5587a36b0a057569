/*
 * A file system for another user than that of the process is refused, unless the options say that
 * the user of the process may do it; homes are where the options say.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.security.PrivilegedExceptionAction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.security.UserGroupInformation;
import org.junit.Test;

public class TestOtherUsers {

    private static final URI ROOT = URI.create("tide:///");

    private static Configuration configuration(TestNode node) {
        Configuration configuration = new Configuration();
        node.options().forEach(configuration::set);
        return configuration;
    }

    private static String home(UserGroupInformation user, Configuration configuration)
            throws Exception {
        PrivilegedExceptionAction<String> ask = () -> {
            try (FileSystem system = FileSystem.newInstance(ROOT, configuration)) {
                return system.getHomeDirectory().toUri().getPath();
            }
        };
        return user.doAs(ask);
    }

    @Test
    public void othersAreRefusedUnlessTheOptionsSayOtherwise() throws Exception {
        UserGroupInformation other = UserGroupInformation.createRemoteUser("alice");
        try (TestNode node = TestNode.absent()) {
            Configuration configuration = configuration(node);
            var error = assertThrows(
                    AccessControlException.class, () -> home(other, configuration));
            assertTrue(error.toString(), error.getMessage().contains("alice")
                    && error.getMessage().contains(TideOptions.OTHER_USERS));
            for (String how : new String[] {"warn", "allow"}) {
                configuration.set(TideOptions.OTHER_USERS, how);
                assertEquals("/user/alice", home(other, configuration));
            }
            configuration.set(TideOptions.OTHER_USERS, "perhaps");
            assertThrows(IOException.class, () -> home(other, configuration));
        }
    }

    @Test
    public void homesAreWhereTheOptionsSay() throws Exception {
        UserGroupInformation own = UserGroupInformation.getCurrentUser();
        try (TestNode node = TestNode.absent()) {
            Configuration configuration = configuration(node);
            String name = own.getShortUserName();
            assertEquals("/user/" + name, home(own, configuration));
            configuration.set(TideOptions.HOME_PREFIX, "/scratch/homes");
            assertEquals("/scratch/homes/" + name, home(own, configuration));
            try (FileSystem system = FileSystem.newInstance(ROOT, configuration)) {
                assertEquals("/scratch/homes/" + name + "/.Trash",
                        system.getTrashRoot(new Path("/file")).toUri().getPath());
            }
        }
    }
}
