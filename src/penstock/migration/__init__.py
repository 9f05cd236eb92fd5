"""Import of data paths of NSQ's nsqd.

data_import    the import as a whole: scan, import, completion after an interruption
topic_import   one topic: merging of its queues, writing, verification
old_data_path  topics, channels and queues of an old data path
queue_files    names, format and reader of queue files
"""
