/*
 * createFile() and appendFile() of tide://, with options for this one file. An unknown option is
 * refused where it is mandatory and ignored otherwise, as in Hadoop.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.EnumSet;
import java.util.Map;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.Path;

final class CreateBuilder extends FSDataOutputStreamBuilder<FSDataOutputStream, CreateBuilder> {

    private final TideFileSystem system;

    CreateBuilder(TideFileSystem system, Path path) {
        super(system, path);
        this.system = system;
    }

    @Override
    public CreateBuilder getThisBuilder() {
        return this;
    }

    @Override
    public FSDataOutputStream build() throws IOException {
        Map<String, String> options = Streams.options(getOptions());
        rejectUnknownMandatoryKeys(TideOptions.PER_OPEN, "for " + getPath());
        EnumSet<CreateFlag> flags = getFlags();
        return system.create(getPath(), flags, getPermission(), isRecursive(), options);
    }
}
