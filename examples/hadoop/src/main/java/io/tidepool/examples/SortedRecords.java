package io.tidepool.examples;

import java.util.Arrays;
import java.util.zip.CRC32;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.SequenceFile;

/**
 * Reads the sequence files of a directory and prints how many records they hold, a checksum that
 * does not depend on their order, and how many of them are smaller than the one before in their
 * file: {@code SortedRecords DIRECTORY}. Meant for plain files, past the file system under test.
 */
public final class SortedRecords {
    private SortedRecords() {}

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        Path directory = new Path(arguments[0]);
        FileSystem files = directory.getFileSystem(configuration);
        FileStatus[] parts = files.globStatus(new Path(directory, "part-*"));
        Arrays.sort(parts);
        long records = 0;
        long sum = 0;
        long unordered = 0;
        for (FileStatus part : parts) {
            BytesWritable key = new BytesWritable();
            BytesWritable value = new BytesWritable();
            BytesWritable before = new BytesWritable();
            SequenceFile.Reader.Option file = SequenceFile.Reader.file(part.getPath());
            try (SequenceFile.Reader reader = new SequenceFile.Reader(configuration, file)) {
                while (reader.next(key, value)) {
                    CRC32 crc = new CRC32();
                    crc.update(key.getBytes(), 0, key.getLength());
                    crc.update(value.getBytes(), 0, value.getLength());
                    sum += crc.getValue();
                    records++;
                    unordered += before.compareTo(key) > 0 ? 1 : 0;
                    before.set(key);
                }
            }
        }
        System.out.println("RECORDS " + records + " " + sum + " " + unordered);
    }
}
