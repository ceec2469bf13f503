"""The format of a data set: a folder of plain tar shards, a JSON index, and one mapped table with
a row a sample.

    shards/
      train-000000.tar ...   samples of one split; webdataset, tar and tarfile read every byte
      val-000000.tar ...
      test-000000.tar ...
      samples-<xxh3>.bin     columns: where every member lies, T, prompt length, label, score, key,
      question id index.json             written last: a folder without it is not a data set

Nothing here imports torch.
"""
